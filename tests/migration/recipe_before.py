from django.core.cache import cache

LOCK_EXPIRE = 60 * 10


def import_feed(url):
    if not cache.add(f"import-{url}", "locked", LOCK_EXPIRE):
        return "being imported by another worker"
    try:
        return f"imported {url}"
    finally:
        cache.delete(f"import-{url}")

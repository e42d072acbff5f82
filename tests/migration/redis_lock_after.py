from celery_redlock import Redlock


def write_report(redlock: Redlock, day, write):
    with redlock.lock(f"report:{day}", wait=5) as lease:
        write(lease.token)

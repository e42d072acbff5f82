import redis


def write_report(client: redis.Redis, day, write):
    with client.lock(f"report:{day}", timeout=600, blocking_timeout=5) as lock:
        write(lock.local.token)

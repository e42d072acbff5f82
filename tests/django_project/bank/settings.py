"""Settings of the project in docs/how-to/django.md."""

import os

SECRET_KEY = "only for tests"  # noqa: S105
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "bank.urls"
USE_TZ = True
STATIC_URL = "/static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["BANK_DATABASE"],
        # Workers and replicas of beat write at the same time.
        "OPTIONS": {
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL",
        },
    }
}
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "celery_redlock.contrib.django",
    "payments",
]

CELERY_BROKER_URL = os.environ.get("BANK_BROKER", "redis://localhost:6379/0")
CELERY_RESULT_BACKEND = CELERY_BROKER_URL
CELERY_TIMEZONE = TIME_ZONE = "UTC"
CELERY_REDLOCK_NODES = os.environ.get(
    "BANK_LOCK_NODES", "redis://lock-a:6379,redis://lock-b:6379,redis://lock-c:6379"
)
CELERY_BEAT_SCHEDULER = "celery_redlock.contrib.django.schedulers:DatabaseScheduler"

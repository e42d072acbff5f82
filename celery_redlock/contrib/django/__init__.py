"""Locks in Django's admin: add ``"celery_redlock.contrib.django"`` to ``INSTALLED_APPS``."""

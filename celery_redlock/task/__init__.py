"""The task class and decorator for users, and the publication of their calls."""

from celery_redlock.execution.running import current_lease

from .decorator import singleton_task
from .singleton import SingletonTask

__all__ = ["SingletonTask", "current_lease", "singleton_task"]

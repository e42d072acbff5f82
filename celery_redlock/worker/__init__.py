"""Hooks into Celery's worker: its steps, the watch over the nodes, and signal handlers."""

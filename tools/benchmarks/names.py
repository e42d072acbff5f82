"""What the rows of the page are called."""

from __future__ import annotations

OURS = "celery-redlock, five nodes"
OURS_ON_ONE = "celery-redlock, one node"
UNTIL_EXECUTED = "celery-redlock, five nodes, until_executed"
BARE = "bare sockets, five nodes"
"""The same scripts over bare sockets: the least that five nodes cost anyone who asks them."""
PLAIN = "no lock"
KILLED = "killed with SIGKILL"
EMPTY = "an empty script"

REDLOCK_PY = "redlock-py, five nodes"
POTTERY = "pottery, five nodes"
NODE_REDLOCK = "redlock (Node.js), five nodes"
UNIVERSAL = "redlock-universal (Node.js), five nodes"
REDIS_PY = "redis-py's Lock, one node"
PYTHON_REDIS_LOCK = "python-redis-lock, one node"
SINGLETON = "celery-singleton, one node"
ONCE = "celery-once, one node"

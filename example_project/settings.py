"""Celery's settings, from the environment. Celery reads this module when the app is first used.

The defaults are those of the README's "By hand": everything on this machine.
"""

from __future__ import annotations

import os

broker_url = os.environ.get("BILLING_BROKER", "redis://127.0.0.1:6379/0")
result_backend = os.environ.get("BILLING_RESULTS", broker_url)
broker_connection_retry_on_startup = True

redlock_nodes = os.environ.get(
    "BILLING_LOCK_NODES",
    "redis://127.0.0.1:6381,redis://127.0.0.1:6382,redis://127.0.0.1:6383,"
    "redis://127.0.0.1:6384,redis://127.0.0.1:6385",
).split(",")

# A node that was just started may have forgotten locks, so it does not vote for about
# redlock_max_ttl. "off" is right only for nodes that never held a lock, as in the demo.
redlock_restart_guard = os.environ.get("BILLING_RESTART_GUARD", "on") != "off"

# As by default. The demo is more patient: a busy machine must not look like a dead node.
redlock_node_timeout = float(os.environ.get("BILLING_NODE_TIMEOUT", "0.05"))

billing_ledger = os.environ.get("BILLING_LEDGER", "ledger.db")
billing_tax_office = os.environ.get("BILLING_TAX_OFFICE", "127.0.0.1:8025")

"""The app that every trial begins with."""

import os

from celery import Celery

app = Celery("bank", broker=os.environ["BANK_BROKER"], backend=os.environ["BANK_BROKER"])
app.conf.redlock_nodes = os.environ["BANK_LOCK_NODES"]
app.conf.redlock_restart_guard = False
app.conf.redlock_node_timeout = 2.0

"""Connections to the nodes and the commands in flight. The only user of redis-py and hiredis."""

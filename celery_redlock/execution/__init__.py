"""Execution of one message, from its lock to its outcome."""

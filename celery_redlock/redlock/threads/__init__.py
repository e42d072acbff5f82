"""Threads that live beside greenlets, forks and signal handlers."""

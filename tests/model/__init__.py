"""Exhaustive exploration of the lock protocol (docs/explanation has the proof that it checks)."""

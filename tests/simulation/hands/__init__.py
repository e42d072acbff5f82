"""A user's hands: steps of the public API in any order, from any thread, in virtual time."""

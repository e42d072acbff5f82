"""Recorded runs of the real lock in virtual time, for the page that plays them."""

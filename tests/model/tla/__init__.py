"""The protocol in TLA+, and TLC, which checks it."""

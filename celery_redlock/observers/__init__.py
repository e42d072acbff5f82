"""Metrics and spans for monitoring systems. Each file is an extra, loaded only if you import it."""

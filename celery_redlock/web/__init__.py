"""Page with nodes, locks, conflicts and beat's ticks, for a browser; the extra `web`."""

"""Differences between pools: which process renews leases, how a body is interrupted."""

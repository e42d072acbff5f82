"""The real lock in virtual time, on simulated nodes and a network with faults."""

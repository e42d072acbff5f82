"""Replicas of beat in virtual time, while entries, replicas, clocks and outages come and go."""

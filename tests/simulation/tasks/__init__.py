"""The real execution of messages in virtual time: policies, workers that die, a broker."""

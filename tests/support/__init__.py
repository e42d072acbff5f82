"""What tests of real servers need: faults on the network, and wall clocks that are stepped."""

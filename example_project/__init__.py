"""A billing service that issues each invoice once, however often it is asked to."""

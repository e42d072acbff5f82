"""A billing service that issues each invoice once, for any number of requests."""

"""A Django app with a tenant model."""

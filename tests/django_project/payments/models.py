from django.db import models


class Invoice(models.Model):
    is_ordered = models.BooleanField(default=False)
    paid_under = models.BigIntegerField(default=0)  # the fencing token


class Closing(models.Model):
    tick = models.CharField(max_length=40)

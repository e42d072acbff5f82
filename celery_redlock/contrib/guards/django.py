"""Guards for the Django ORM: a mixin for models, and a model of effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .effects import NO_TRANSACTION, Effect, decoded
from .stale import StaleToken, valid_token

try:
    from django.db import models
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "celery_redlock.contrib.guards.django needs Django: pip install django"
    ) from error


class Fenced(models.Model):
    """Mixin for a model whose rows a stale run must not write. It adds the column `fence`."""

    objects = models.Manager()
    fence = models.BigIntegerField(default=0, editable=False)

    class Meta:
        """A mixin has no table."""

        abstract = True

    @classmethod
    def claim(cls, pk: Any, token: int | None) -> Any:
        """Claim the row for this run, and return it as read after that.

        Call it outside a transaction: the claim must be committed before the row is read.

        Args:
            pk: Primary key of the row.
            token: Fencing token of the run.

        Raises:
            StaleToken: A newer run has claimed the row, it does not exist, or `token` is None.
            RuntimeError: A transaction is open.
            TypeError: The fence is in the table of a parent (multi-table inheritance).
        """
        from django.db import router, transaction  # noqa: PLC0415  # needs Django's settings

        fenced: Any = cls._meta.get_field("fence").model
        if fenced is not cls._meta.concrete_model:
            # Django selects the row in one statement and updates it in another.
            raise TypeError(
                f"the fence of {cls._meta.label} is in the table of {fenced.__name__}: "
                "a claim must be of one table"
            )
        name = f"{cls._meta.label}:{pk}"
        database = router.db_for_write(cls)
        if not transaction.get_autocommit(using=database):
            raise RuntimeError("a transaction is open; claim before it, so that it is committed")
        rows = cls.objects.filter(pk=pk, fence__lte=valid_token(name, token))
        if not rows.update(fence=token):
            raise StaleToken(name, token)
        # A replica may not have the last write yet.
        row = cls.objects.using(database).get(pk=pk)
        # Another run may have claimed it in between: then this one writes nothing.
        row.fence = token
        return row

    def write(self, **changes: Any) -> None:
        """Write fields of a row that was claimed, if the claim is still the latest.

        Args:
            **changes: New values, by the name of the field; expressions of the ORM, too.

        Raises:
            StaleToken: A newer run has claimed the row since.
            TypeError: There is nothing to write.
        """
        if not changes:
            raise TypeError("write() needs at least one field")
        model: Any = type(self)
        rows = model.objects.filter(pk=self.pk, fence=self.fence)
        if not rows.update(**changes):
            raise StaleToken(f"{self._meta.label}:{self.pk}", self.fence)
        for name, value in changes.items():
            setattr(self, name, value)

    def _do_update(
        self, base_qs: Any, using: Any, pk_val: Any, values: Sequence[Any], *others: Any
    ) -> Any:
        """Update the row for `save`, which leaves the fence: what was read may be an older one."""
        values = [value for value in values if value[0].name != "fence"]
        update: Any = super()._do_update
        return update(base_qs, using, pk_val, values, *others)


class EffectModel(models.Model):
    """Base of a model with a row for each effect that is done. Its subclass needs no fields."""

    objects = models.Manager()
    name = models.CharField(max_length=255, primary_key=True)
    token = models.BigIntegerField()
    result = models.TextField(null=True)
    done_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        """The subclass has the table."""

        abstract = True

    def __str__(self) -> str:
        return str(self.name)

    @classmethod
    def once(cls, name: str, token: int | None) -> Effect:
        """Return the effect `name`: call it in the transaction of the effect's writes, before them.

        If another transaction is doing the same effect, this waits for its end.

        Args:
            name: Name of the effect, at most 255 characters.
            token: Fencing token of the run.

        Returns:
            An effect that is new for one run: the first whose transaction is committed. Later runs
            get its result.

        Raises:
            StaleToken: A newer run has done the effect, or `token` is None.
            RuntimeError: No transaction is open.
        """
        from django.db import router, transaction  # noqa: PLC0415  # needs Django's settings

        def refuse_autocommit() -> None:
            if transaction.get_autocommit(using=router.db_for_write(cls)):
                raise RuntimeError(NO_TRANSACTION)

        def write(result: str) -> bool:
            refuse_autocommit()
            return bool(cls.objects.filter(pk=name, token=token).update(result=result))

        token = valid_token(name, token)
        refuse_autocommit()
        row, is_new = cls.objects.get_or_create(name=name, defaults={"token": token})
        if row.token > token:
            raise StaleToken(name, token)
        return Effect(name, is_new=is_new, result=decoded(row.result), _write=write)

"""The tenants of a project with django-tenants."""

from __future__ import annotations

from django_tenants.models import DomainMixin, TenantMixin


class Client(TenantMixin):  # type: ignore[misc]
    """One tenant."""

    auto_create_schema = True


class Domain(DomainMixin):  # type: ignore[misc]
    """Where a tenant is reached."""

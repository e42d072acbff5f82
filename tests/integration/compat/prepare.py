"""Make the tables of a library that is a Django app.

In a process where it is active: `python -m tests.integration.compat.prepare`.
"""

from __future__ import annotations

import django


def main() -> None:
    """Make the tables, and with django-tenants the schema of a tenant."""
    django.setup()
    from django.apps import apps  # noqa: PLC0415
    from django.core.management import call_command  # noqa: PLC0415
    from django.db import connection  # noqa: PLC0415

    if not apps.is_installed("django_tenants"):
        call_command("migrate", verbosity=0)
        return
    call_command("migrate_schemas", "--shared", verbosity=0)
    client, domain = (apps.get_model("beside_tenants", name) for name in ("Client", "Domain"))
    with connection.schema_editor() as editor:
        for model in (client, domain):
            editor.create_model(model)
    client(schema_name="first").save(verbosity=0)


if __name__ == "__main__":
    main()

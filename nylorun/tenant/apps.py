"""Django application ``tenant``."""

from django.apps import AppConfig


class TenantConfig(AppConfig):
    """What the one Tenant of an installation owns besides its Environments: settings, locks, its identity."""

    name = "nylorun.tenant"
    label = "tenant"
    default_auto_field = "django.db.models.BigAutoField"

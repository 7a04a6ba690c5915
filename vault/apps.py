"""Django application ``vault``."""

from django.apps import AppConfig


class VaultConfig(AppConfig):
    """The strongroom: one Vault per Environment."""

    name = "vault"
    default_auto_field = "django.db.models.BigAutoField"

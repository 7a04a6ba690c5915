"""Django application ``access``."""

from django.apps import AppConfig


class AccessConfig(AppConfig):
    """Who calls: application keys, and the keys that sign tokens."""

    name = "nylorun.access"
    label = "access"
    default_auto_field = "django.db.models.BigAutoField"

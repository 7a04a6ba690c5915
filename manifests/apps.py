"""Django application ``manifests``."""

from django.apps import AppConfig


class ManifestsConfig(AppConfig):
    """The library: versioned descriptions of what an Environment runs, and the files they name."""

    name = "manifests"
    label = "manifests"
    default_auto_field = "django.db.models.BigAutoField"

"""Django application ``record``."""

from django.apps import AppConfig


class RecordConfig(AppConfig):
    """What happened (events) and what must happen (outbox)."""

    name = "nylorun.record"
    label = "record"
    default_auto_field = "django.db.models.BigAutoField"

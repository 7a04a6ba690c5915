"""Django application ``workers``."""

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    """The yard: the only place that knows Celery."""

    name = "workers"

    def ready(self) -> None:
        """Take over what commits promise: every process of the installation hands its outbox rows to the broker."""
        from workers import handover  # noqa: PLC0415 models are loaded by now, and were not when this file was read

        handover.install()

"""Django application ``workers``."""

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    """The yard: the only place that knows Celery."""

    name = "workers"

    def ready(self) -> None:
        """Take over what commits promise, in every process of the installation, and show how long tasks run."""
        from nylorun.http.metrics import add_source  # noqa: PLC0415
        from workers import handover, metrics  # noqa: PLC0415 models are loaded by now, and were not at the file's top

        handover.install()
        add_source("tasks", metrics.seconds)

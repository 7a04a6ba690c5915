"""Django application ``environments``."""

from django.apps import AppConfig


class EnvironmentsConfig(AppConfig):
    """The living room: Environments, their machines and the calls on them."""

    name = "environments"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Tell the rooms below what only this one knows: metrics of rows, whether pods can be made, idle timers."""
        from environments.api import metrics  # noqa: PLC0415 models are loaded by now
        from environments.services.rearm import ask_rearm  # noqa: PLC0415
        from environments.tools import machines  # noqa: PLC0415
        from manifests.services.sandbox import AFTER_CHANGE  # noqa: PLC0415
        from nylorun.http.metrics import add_source  # noqa: PLC0415
        from nylorun.http.protocol import Features  # noqa: PLC0415

        add_source("environments", metrics.environments)
        add_source("outbox", metrics.promises)
        Features.sandbox_pods = staticmethod(machines.pods_ready)
        AFTER_CHANGE.append(ask_rearm)

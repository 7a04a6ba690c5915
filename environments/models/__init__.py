"""Rows of the Environments. Only ``environments.services`` and the admin import them."""

from environments.models.effect import Effect
from environments.models.environment import LIVE, Environment, rows
from environments.models.operation import Operation

__all__ = ["LIVE", "Effect", "Environment", "Operation", "rows"]

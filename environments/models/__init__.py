"""Rows of the Environments. Only ``environments.services`` and the admin import them."""

from environments.models.effect import Effect
from environments.models.environment import Environment
from environments.models.operation import Operation

__all__ = ["Effect", "Environment", "Operation"]

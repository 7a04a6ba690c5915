"""How the local Driver says that it cannot: each is a :class:`NoAnswer`, so nothing is concluded from it."""

from __future__ import annotations

from environments.compute.contract import NoAnswer


class Busy(NoAnswer):
    """Another process is changing this name just now."""


class NameTaken(NoAnswer):
    """The name bears an object or a volume of somebody else (reason ``name_taken``): it is left alone."""


class CannotStart(NoAnswer):
    """This host cannot start a pod now; the text says why."""

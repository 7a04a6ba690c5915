"""Settings of a running installation."""

from nylorun.settings.base import *  # noqa: F403, TID251 settings modules build on each other

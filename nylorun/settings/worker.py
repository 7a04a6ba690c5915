"""Settings of a worker: the same installation without what only browsers and the API need."""

from nylorun.settings.base import *  # noqa: F403, TID251 settings modules build on each other
from nylorun.settings.base import INSTALLED_APPS  # noqa: TID251 the one value narrowed below

_ONLY_FOR_PAGES = (
    "django.contrib.admin",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
)
INSTALLED_APPS = [name for name in INSTALLED_APPS if name not in _ONLY_FOR_PAGES]
ROOT_URLCONF = ""

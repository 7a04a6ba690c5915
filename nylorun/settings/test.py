"""Settings of the test suite: the real servers that ``tests/conftest.py`` starts, without a pool."""

import os

# Read at import: conftest starts the servers before Django is configured; tools that only read the settings need none.
os.environ.setdefault("DATABASE_URL", "postgresql://nylorun@localhost/nylorun")
os.environ.setdefault("REDIS_URL", "redis://localhost:6379/0")
os.environ.setdefault("SECRET_KEY", "only-for-tests")
os.environ.setdefault("NYLORUN_KEYRING", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
os.environ.setdefault("NYLORUN_DRIVER", "fake")

from nylorun.settings.base import *  # noqa: F403, TID251 settings modules build on each other
from nylorun.settings.base import DATABASES  # noqa: TID251 the one value changed below

DATABASES["default"]["OPTIONS"].pop("pool")
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

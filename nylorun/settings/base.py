"""Django settings, built from :mod:`nylorun.config`. Nobody imports this module: use ``django.conf.settings``."""

from __future__ import annotations

from typing import Any

import environ

from nylorun import config

CONFIG = config.current()

SECRET_KEY = CONFIG.secret_key
DEBUG = CONFIG.debug
ALLOWED_HOSTS = ["*"]  # the API answers by credential, not by host; a proxy in front decides on names
ROOT_URLCONF = "nylorun.urls"
WSGI_APPLICATION = "nylorun.wsgi.application"
APPEND_SLASH = False
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATA_UPLOAD_MAX_MEMORY_SIZE = None  # nylorun.http.body bounds every body by its route
FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.TemporaryFileUploadHandler"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "nylorun.tenant",
    "nylorun.record",
    "nylorun.access",
    "vault",
    "manifests",
    "environments",
    "workers",
]

# What only the admin needs is wrapped around the admin alone (nylorun.http.middleware.AdminOnly): an API request passes
# one middleware.
MIDDLEWARE = [
    "nylorun.http.middleware.RequestFrame",
    "nylorun.http.middleware.AdminOnly",
]
ADMIN_MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
# The admin's middleware is there, around the admin alone: these checks look for it around everything.
SILENCED_SYSTEM_CHECKS = ["admin.E408", "admin.E409", "admin.E410"]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

_DATABASE: dict[str, Any] = environ.Env.db_url_config(CONFIG.database_url)
_DATABASE["ENGINE"] = "django.db.backends.postgresql"
_OPTIONS: dict[str, Any] = _DATABASE.setdefault("OPTIONS", {})
# One wait for a row lock is at most LOCK_WAIT; set on the connection, it costs no statement.
_OPTIONS["options"] = "-c lock_timeout=5000 -c idle_in_transaction_session_timeout=60000"
_OPTIONS["connect_timeout"] = 3
# Statements are prepared after a few uses: the server plans each of the few there are once a connection.
_OPTIONS["server_side_binding"] = True
_OPTIONS["pool"] = {"min_size": 1, "max_size": CONFIG.pool_size, "timeout": 5, "max_idle": 120}
DATABASES = {"default": _DATABASE}

AUTH_PASSWORD_VALIDATORS: list[dict[str, str]] = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
]

STATIC_URL = "/admin/static/"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["nylorun.access.authentication.CallerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_PARSER_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "EXCEPTION_HANDLER": "nylorun.http.handler.answer_for",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
}

SPECTACULAR_SETTINGS = {
    "TITLE": "nylorun",
    "DESCRIPTION": "The control plane for the Environments that AI agents work in.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SERVE_AUTHENTICATION": [],
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {"django.request": {"level": "ERROR"}, "django.server": {"level": "WARNING"}},
}

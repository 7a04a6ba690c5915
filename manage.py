#!/usr/bin/env python
"""Django's entry: ``python manage.py migrate`` and the other commands."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nylorun.settings.dev")
    execute_from_command_line(sys.argv)

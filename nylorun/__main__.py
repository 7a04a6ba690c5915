"""`python -m nylorun` is the `nylorun` command."""

import sys

from nylorun.cli.main import main

sys.exit(main())

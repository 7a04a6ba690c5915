"""`nylorun keys`, `nylorun blobs` and `nylorun manage`: management commands with the environment of a data folder.

While `up` runs on the folder, they use its servers. Otherwise they hold the folder and start the embedded servers for
as long as the command takes.
"""

import argparse
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from nylorun import config
from nylorun.embedded.installation import Installation, InUse, management
from nylorun.embedded.table import Servers


class NoInstallation(RuntimeError):
    """The data folder is not one; the message says how to make it."""


def manage(arguments: argparse.Namespace) -> int:
    """Run the command on the terminal of the caller; its exit code is ours."""
    command = [*arguments.command, *([arguments.id] if "id" in arguments else [])]
    if vars(arguments).get("replace"):
        command.append("--replace")
    with ExitStack() as held:
        environment = _environment(_installation(arguments.data_dir), held)
        return subprocess.run(management(command), env=environment, check=False).returncode


def _installation(folder: Path) -> Installation:
    if not (folder / "up.lock").exists():
        raise NoInstallation(
            f"{folder.absolute()} is no data folder of nylorun: run `nylorun up --data-dir {folder}` first"
        )
    return Installation(folder)


def _environment(installation: Installation, held: ExitStack) -> Mapping[str, str]:
    """The environment to run in; the servers it names run until `held` is left."""
    try:
        held.enter_context(installation.lock())
    except InUse:
        environment = installation.published_environment()
        config.check(environment)
        return environment
    installation.check_settings()
    servers = Servers(installation)
    for server in servers.embedded():
        held.callback(server.stop)
        server.start()
    return installation.environment(database_url=servers.database_url, redis_url=servers.redis_url)

"""The verbs of the `nylorun` command and their options.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage or a wrong setting in the environment.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import nylorun
from nylorun.cli import admin, demo, secret_options, secrets, up
from nylorun.config import ConfigError
from nylorun.embedded.installation import CommandFailed, InUse
from nylorun.embedded.places import PlaceError
from nylorun.embedded.server import ServerFailed
from nylorun.embedded.supervisor import PartFailed

REFUSALS = (
    CommandFailed, InUse, PartFailed, PlaceError, ServerFailed, admin.NoInstallation, secrets.Refused, up.CannotListen,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; what is refused is one message on standard error, for a setting one line that names it."""
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except ConfigError as error:
        print(f"nylorun: {error}", file=sys.stderr)
        return 2
    except REFUSALS as error:
        print(f"nylorun: {error}", file=sys.stderr)
        return 1
    return code


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="nylorun", description="The control plane for the Environments of AI agents.")
    root.add_argument("--version", action="version", version=f"nylorun {nylorun.__version__}")
    verbs = root.add_subparsers(metavar="VERB", required=True)
    _add_up(verbs)
    _add_keys(verbs)
    _add_secrets(verbs)
    _add_blobs(verbs)
    _add_manage(verbs)
    _add_demo(verbs)
    return root


def _add_up(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "up",
        help="run everything on this machine",
        description="Run PostgreSQL, Valkey, the API, workers, beat, the virtual Engine and the egress gate over one "
        "data folder, until SIGTERM or Ctrl-C. DATABASE_URL and REDIS_URL in the environment name servers to use "
        "instead.",
    )
    _add_data_dir(verb)
    verb.add_argument("--port", type=_port, default=8000, metavar="N", help="port on 127.0.0.1, 0 = a free one (8000)")
    verb.add_argument("--driver", choices=("local", "fake", "none"), default="local", help="what runs pods (local)")
    verb.set_defaults(run=up.run)


def _add_keys(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("keys", help="application keys of the local installation")
    actions = verb.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser("create", help="create an application and print its key, once")
    create.add_argument("id", help="the application's id")
    create.add_argument("--replace", action="store_true", help="give an existing application a new key")
    create.set_defaults(run=admin.manage, command=["create_application"])
    listing = actions.add_parser("list", help="list the applications, without their keys")
    listing.set_defaults(run=admin.manage, command=["list_applications"])
    revoke = actions.add_parser("revoke", help="revoke the key of an application")
    revoke.add_argument("id", help="the application's id")
    revoke.set_defaults(run=admin.manage, command=["revoke_application"])
    for action in (create, listing, revoke):
        _add_data_dir(action)


def _add_secrets(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "secrets",
        help="Secrets of an Environment",
        description="Over the API of the data folder, or of NYLORUN_URL with NYLORUN_API_KEY.",
    )
    for action in secret_options.add(verb):
        _add_data_dir(action)


def _add_blobs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("blobs", help="stored content of the local installation")
    actions = verb.add_subparsers(metavar="ACTION", required=True)
    what = {
        "verify": "read every stored version and tell what is missing or damaged",
        "gc": "remove blobs that nothing has named for a day",
        "stats": "count what is stored",
    }
    for name, help in what.items():
        action = actions.add_parser(name, help=help)
        _add_data_dir(action)
        action.set_defaults(run=admin.manage, command=["blobs", name])


def _add_manage(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "manage",
        help="run a management command of the local installation",
        description="Run a management command with the environment of the data folder, while `up` runs or not: "
        "nylorun manage --data-dir DIR -- migrate --plan",
    )
    _add_data_dir(verb)
    verb.add_argument("command", nargs="+", metavar="-- COMMAND [ARGUMENT ...]", help="the command and its arguments")
    verb.set_defaults(run=admin.manage)


def _add_demo(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "demo",
        help="walk one Environment of each kind through its life",
        description="Start everything in a temporary folder, walk the main job over HTTP, and leave nothing behind. "
        "Writes .nylorun/demo.json.",
    )
    verb.set_defaults(run=lambda arguments: demo.run())


def _add_data_dir(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--data-dir",
        type=Path,
        default=Path("data"),
        metavar="DIR",
        help="the data folder of the installation (./data)",
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is not a port: 0 to 65535")
    return port

"""The options of `nylorun secrets`.

Arguments are seen by other users of the machine and kept by shells, so none takes a value. One that looks like a value
is wrong usage: the message names the next step and does not repeat it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nylorun.cli import secrets

NO_VALUE = (
    "a value is never an argument: other users of this machine can see it. Leave it out and type it when asked, pipe "
    "it in, or name a file with --from-file; one that was real is better replaced where it came from"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Parser(argparse.ArgumentParser):
    """A parser that does not repeat what it has no place for: it may be a value."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the standard one, but what is left over is wrong usage already here."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            self.error(NO_VALUE)
        return found, left


def add(verb: argparse.ArgumentParser) -> Sequence[argparse.ArgumentParser]:
    """Give the verb its actions; these are returned, for what all verbs have."""
    actions = verb.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)
    write = actions.add_parser(
        "set",
        help="write a value, read from standard input",
        description="The value comes from standard input, --from-file, or a prompt without echo: never as an argument, "
        "which other users of this machine can see. Without --type the Manifest's Slot says what it is.",
        allow_abbrev=False,
    )
    listing = actions.add_parser("list", help="list names, types, targets and times; values are never shown")
    removal = actions.add_parser("rm", help="remove a Secret")
    for action, run in ((write, secrets.set_one), (listing, secrets.show_all), (removal, secrets.remove)):
        action.add_argument("environment", help="the Environment's id")
        action.set_defaults(run=run)
    for action in (write, removal):
        action.add_argument("name", type=_name, help="the Secret's name")
    _add_binding(write)
    write.add_argument("--headers", action="store_true", help="the input is lines 'Name: value', for a Slot of headers")
    write.add_argument("--from-file", type=Path, metavar="FILE", help="read the value from this file")
    return write, listing, removal


def _add_binding(write: argparse.ArgumentParser) -> None:
    write.add_argument("--type", type=_type, help=f"what it is, where no Slot says so: {', '.join(secrets.TYPES)}")
    write.add_argument(
        "--host", action="append", help="host whose requests get it (environment_secret); may be repeated"
    )
    write.add_argument("--url", help="URL whose requests get it (bearer, headers)")
    write.add_argument("--via", help="where such requests go instead; one of the Tenant's limits.via")
    write.add_argument(
        "--header",
        type=_header,
        metavar="NAME",
        help="header that holds it (environment_secret); default Authorization",
    )
    write.add_argument(
        "--format", type=_format, help="how the header holds it: 'Bearer {value}' in Authorization, else {value}"
    )


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"letters, digits, '_', '.' and '-', at most 128, and no digit first; {NO_VALUE}"
        )
    return text


def _type(text: str) -> str:
    if text not in secrets.TYPES:
        raise argparse.ArgumentTypeError(f"one of {', '.join(secrets.TYPES)}")
    return text


def _header(text: str) -> str:
    if _HEADER.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"the name of a header alone; {NO_VALUE}")
    return text


def _format(text: str) -> str:
    if "{value}" not in text:
        raise argparse.ArgumentTypeError(f"holds {{value}} where the value goes; {NO_VALUE}")
    return text

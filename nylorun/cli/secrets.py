"""`nylorun secrets set|list|rm`: Secrets of an Environment, over the API.

A value is read from standard input, from a file, or from a terminal without echo; never from an argument, which other
users of the machine could see. No output, error or exception of this file holds one.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nylorun.cli.client import Client, environment_path

TYPES = ("environment_variable", "environment_secret", "bearer", "headers")


class Refused(RuntimeError):
    """The API refused, or a value is missing; the message is the server's, or names the next step."""


def set_one(arguments: argparse.Namespace) -> int:
    """Insert a Secret, or give it another value."""
    body = {**_binding(arguments), **_value(arguments)}
    info = _ask(arguments, "PUT", arguments.name, body)
    print(f"{info['name']} ({info['type']}) is set" + (f", rotated {info['rotatedAt']}" if "rotatedAt" in info else ""))
    return 0


def show_all(arguments: argparse.Namespace) -> int:
    """A line for each Secret: name, type, where it goes, when it was written."""
    for info in _ask(arguments, "GET", None)["secrets"]:
        where = info.get("url") or ", ".join(info.get("allowedHosts", ()))
        print("\t".join((info["name"], info["type"], where, info.get("rotatedAt") or info["createdAt"])))
    return 0


def remove(arguments: argparse.Namespace) -> int:
    """Remove a Secret; a missing one is told and is no failure."""
    deleted = _ask(arguments, "DELETE", arguments.name)["deleted"]
    print(f"{arguments.name} is gone" if deleted else f"there is no {arguments.name}")
    return 0


def _ask(arguments: argparse.Namespace, method: str, name: str | None, body: Any = None) -> dict[str, Any]:
    rest = "/secrets" if name is None else f"/secrets/{quote(name, safe='')}"
    answer = _client(arguments.data_dir).call(method, environment_path(arguments.environment, rest), body)
    if answer.status not in (200, 201):
        raise Refused(_told(answer.body))
    return dict(answer.body)


def _told(body: Any) -> str:
    """The server's message, and every problem that it names; the API never repeats a value in them."""
    if not isinstance(body, dict):
        return "the answer is none of nylorun's"
    problems = body.get("details", {}).get("problems", ())
    return "\n".join([body.get("message", ""), *(f"  {one['path']} {one['message']}" for one in problems)])


def _client(folder: Path) -> Client:
    """The API that the environment names, else that of the data folder."""
    url, key = os.environ.get("NYLORUN_URL"), os.environ.get("NYLORUN_API_KEY")
    if url and key:
        return Client(url, key)
    try:
        made = json.loads((folder / "connection.json").read_text())
    except FileNotFoundError:
        raise Refused(
            f"no nylorun runs on {folder}: name another --data-dir, or set NYLORUN_URL and NYLORUN_API_KEY"
        ) from None
    return Client(made["url"], made["applicationKey"])


def _binding(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options say of type and target; empty when the Manifest's Slot decides."""
    members: dict[str, Any] = {}
    if arguments.type:
        members["type"] = arguments.type
    if arguments.host:
        members["allowedHosts"] = arguments.host
    if arguments.url:
        members["url"] = arguments.url
    if arguments.via:
        members["via"] = arguments.via
    if arguments.header or arguments.format:
        members["inject"] = {"header": arguments.header or "Authorization", "format": arguments.format or "{value}"}
    return members


def _value(arguments: argparse.Namespace) -> dict[str, Any]:
    text = _read(arguments.from_file)
    if not arguments.headers and arguments.type != "headers":
        return {"value": text}
    lines = [line.partition(":") for line in text.splitlines() if line.strip()]
    if not all(colon for _, colon, _ in lines):
        raise Refused("each line of headers is 'Name: value'")
    return {"headers": {name.strip(): value.strip() for name, _, value in lines}}


def _read(file: Path | None) -> str:
    """The value, without one newline at its end."""
    try:
        if file is not None:
            text = file.read_text()
        elif sys.stdin.isatty():
            return getpass.getpass("value (not shown): ")
        else:
            text = sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"the value cannot be read: {type(error).__name__}") from None
    return text.removesuffix("\n").removesuffix("\r")

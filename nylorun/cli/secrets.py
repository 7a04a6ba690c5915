"""`nylorun secrets set|list|rm`: Secrets of an Environment, over the API.

A value is read from standard input, from a file, or from a terminal without echo; never from an argument, which other
users of the machine could see. No output, error or exception of this file holds one.
"""

from __future__ import annotations

import argparse
import getpass
import http.client
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nylorun.cli.client import Answer, Client, environment_path

TYPES = ("environment_variable", "environment_secret", "bearer", "headers")
COLUMNS = ("NAME", "TYPE", "TARGET", "SET", "ROTATED")


class Refused(RuntimeError):
    """Refused by the API, or it cannot be asked, or no value; the message is the server's, or names the next step."""


def set_one(arguments: argparse.Namespace) -> int:
    """Insert a Secret, or give it another value."""
    body = {**_binding(arguments), **_value(arguments)}
    info = _ask(arguments, "PUT", arguments.name, body)
    print(f"{info['name']} ({info['type']}) is set" + (f", rotated {info['rotatedAt']}" if "rotatedAt" in info else ""))
    return 0


def show_all(arguments: argparse.Namespace) -> int:
    """A line for each Secret: name, type, where it goes, when it was first and last written."""
    rows = [
        (info["name"], info["type"], _target(info), info["createdAt"], info.get("rotatedAt", "-"))
        for info in _ask(arguments, "GET", None)["secrets"]
    ]
    print("\n".join(_table([COLUMNS, *rows])))
    return 0


def remove(arguments: argparse.Namespace) -> int:
    """Remove a Secret; a missing one is told and is no failure."""
    deleted = _ask(arguments, "DELETE", arguments.name)["deleted"]
    print(f"{arguments.name} is gone" if deleted else f"there is no {arguments.name}")
    return 0


def _target(info: dict[str, Any]) -> str:
    """The binding in words: where requests get it, where they go instead, and the headers that hold it."""
    where = [info.get("url") or ",".join(info.get("allowedHosts", ())) or "-"]
    if "via" in info:
        where.append(f"via {info['via']}")
    headers = info.get("headerNames") or ([info["inject"]["header"]] if "inject" in info else [])
    if headers:
        where.append(f"({', '.join(headers)})")
    return " ".join(where)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _ask(arguments: argparse.Namespace, method: str, name: str | None, body: Any = None) -> dict[str, Any]:
    rest = "/secrets" if name is None else f"/secrets/{quote(name, safe='')}"
    answer = _answer(_client(arguments.data_dir), method, environment_path(arguments.environment, rest), body)
    if answer.status not in (200, 201) or not isinstance(answer.body, dict):
        raise Refused(_told(answer.body))
    return answer.body


def _answer(client: Client, method: str, path: str, body: Any) -> Answer:
    try:
        return client.call(method, path, body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Refused(f"{client.url} does not answer ({type(error).__name__}): is nylorun running there?") from None


def _told(body: Any) -> str:
    """The server's message; of several problems each on a line, since the message of one holds it already."""
    if not isinstance(body, dict):
        return "the answer is none of nylorun's"
    problems = (body.get("details") or {}).get("problems", ())
    lines = [f"  {one['path']} {one['message']}" for one in problems if isinstance(one, dict)]
    return "\n".join([body.get("message", ""), *(lines if len(lines) > 1 else ())])


def _client(folder: Path) -> Client:
    """The API that the environment names, else that of the data folder."""
    url, key = os.environ.get("NYLORUN_URL"), os.environ.get("NYLORUN_API_KEY")
    if url and key:
        if not url.startswith(("http://", "https://")):
            raise Refused("NYLORUN_URL is no http:// or https:// URL")
        return Client(url, key)
    try:
        made = json.loads((folder / "connection.json").read_text())
        return Client(made["url"], made["applicationKey"])
    except (OSError, ValueError, KeyError):
        raise Refused(
            f"no nylorun runs on {folder}: name another --data-dir, or set NYLORUN_URL and NYLORUN_API_KEY"
        ) from None


def _binding(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options say of type and target; empty when the Manifest's Slot decides."""
    members: dict[str, Any] = {}
    if arguments.host:
        members["allowedHosts"] = arguments.host
    if arguments.url:
        members["url"] = arguments.url
    if arguments.via:
        members["via"] = arguments.via
    if arguments.header or arguments.format:
        header = arguments.header or "Authorization"
        usual = "Bearer {value}" if header.lower() == "authorization" else "{value}"
        members["inject"] = {"header": header, "format": arguments.format or usual}
    if arguments.type:
        return {"type": arguments.type, **members}
    if members:
        raise Refused("a target needs --type; without both the Manifest's Slot says what it is and where it goes")
    return {}


def _value(arguments: argparse.Namespace) -> dict[str, Any]:
    text = _read(arguments.from_file)
    if not arguments.headers and arguments.type != "headers":
        return {"value": text}
    lines = [line.partition(":") for line in text.split("\n") if line.strip()]
    if not all(colon for _, colon, _ in lines):
        raise Refused("each line of headers is 'Name: value'")
    given = {name.strip(): value.strip() for name, _, value in lines}
    if len(given) < len(lines):
        raise Refused("each header is given once")
    return {"headers": given}


def _read(file: Path | None) -> str:
    """The value as it was given, UTF-8 in every locale, without one newline at its end."""
    try:
        if file is not None:
            data = file.read_bytes()
        elif sys.stdin.isatty():
            return getpass.getpass("value (not shown): ")
        else:
            data = sys.stdin.buffer.read()
        text = data.decode()
    except (OSError, EOFError, KeyboardInterrupt, UnicodeDecodeError) as error:
        raise Refused(f"the value cannot be read: {type(error).__name__}") from None
    return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")

"""Host names: the grammar of every place that names one, and which entry of a list covers which host. Pure.

    host   [ "*." ] label { "." label }      label  ^(?!-)[a-z0-9-]{1,63}(?<!-)$

A host has at least 2 labels (behind ``*.``), at most 253 characters and not only numeric labels (hexadecimal ones
included), so an address is never one. Text is ASCII and compared lower-cased. Every function raises ``ValueError`` with
a few words for people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HOST_MAX = 253
LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # a part of an IPv4 address, as the parsers of addresses take it
EXACT = r"^[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+$"
PATTERN = r"^(\*\.)?[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+$"
"""The grammar as far as a JSON Schema tells it; :func:`exact_host` and :func:`host_pattern` decide."""


def host_pattern(text: str) -> str:
    """``text`` lower-cased, when it is a host or ``*.`` and a host."""
    lowered = text.lower() if text.isascii() else ""
    labels = lowered.removeprefix("*.").split(".")
    if len(lowered) > HOST_MAX:
        raise ValueError(f"must be at most {HOST_MAX} characters")
    if len(labels) < 2 or not all(LABEL.fullmatch(label) for label in labels):
        raise ValueError("must be a host name such as api.example.org, without scheme, port or path")
    if all(_NUMBER.fullmatch(label) for label in labels):
        raise ValueError("must be a host name, not an address")
    return lowered


def exact_host(text: str) -> str:
    """``text`` lower-cased, when it is a host without a wildcard."""
    host = host_pattern(text)
    if is_pattern(host):
        raise ValueError("must be an exact host name, without *.")
    return host


def is_pattern(host: str) -> bool:
    """Whether this entry stands for every host below it."""
    return host.startswith("*.")


def covers(entry: str, host: str) -> bool:
    """Whether ``entry`` allows ``host``, itself exact or a pattern. ``*.x`` covers ``a.x`` and ``*.a.x``, not ``x``."""
    if entry == host:
        return True
    return is_pattern(entry) and host.removeprefix("*.").endswith(entry[1:])


def covered(host: str, entries: Iterable[str]) -> bool:
    """Whether any entry allows ``host``. An empty list allows nothing."""
    return any(covers(entry, host) for entry in entries)

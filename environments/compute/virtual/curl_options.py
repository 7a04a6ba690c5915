"""The command line of ``curl``, as far as a virtual workspace has it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

FLAGS = {
    "s": "silent", "S": "show-error", "f": "fail", "i": "include", "I": "head", "L": "location", "v": "verbose",
    "G": "get", "O": "remote-name", "N": "no-buffer", "g": "globoff", "#": "progress-bar",
}  # fmt: skip
VALUES = {
    "X": "request", "H": "header", "d": "data", "o": "output", "u": "user", "A": "user-agent", "e": "referer",
    "b": "cookie", "w": "write-out", "m": "max-time", "D": "dump-header", "r": "range", "T": "upload-file",
}  # fmt: skip
LONG_FLAGS = frozenset((*FLAGS.values(), "compressed", "fail-with-body", "http1.1", "no-progress-meter", "create-dirs"))
LONG_VALUES = frozenset(
    (*VALUES.values(), "data-raw", "data-binary", "data-ascii", "data-urlencode", "json", "max-redirs",
     "connect-timeout", "url")
)  # fmt: skip
DATA = frozenset(("data", "data-raw", "data-binary", "data-ascii", "data-urlencode", "json"))
REFUSED = {
    "k": "certificates are always verified here",
    "insecure": "certificates are always verified here",
    "x": "the way out of a workspace is fixed",
    "proxy": "the way out of a workspace is fixed",
}
MAX_REDIRECTS = 10


class Misused(ValueError):
    """A command line that is not served: the message says why."""


@dataclass(slots=True)
class Options:
    """What was asked for. ``data`` holds kind and text of each ``-d`` and its like, in their order."""

    flags: set[str] = field(default_factory=set)
    single: dict[str, str] = field(default_factory=dict)
    headers: list[str] = field(default_factory=list)
    data: list[tuple[str, str]] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)
    """A file for each URL in turn; ``None`` is the name at the URL's end."""

    def has(self, flag: str) -> bool:
        """Whether a flag was given."""
        return flag in self.flags

    def seconds(self, name: str) -> float | None:
        """A time limit; raises ``Misused``."""
        text = self.single.get(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            raise Misused(f"expected a proper numerical parameter for --{name}") from None
        if not 0 <= value < 1e9:
            raise Misused(f"--{name} is out of range")
        return value or None

    @property
    def redirects(self) -> int:
        """How many are followed; raises ``Misused``."""
        if not self.has("location"):
            return 0
        text = self.single.get("max-redirs", str(MAX_REDIRECTS))
        if not (text.isascii() and text.isdigit()):
            raise Misused("expected a proper numerical parameter for --max-redirs")
        return min(int(text), MAX_REDIRECTS)


def read(argv: list[str]) -> Options:
    """Read a command line; raises ``Misused``."""
    options = Options()
    ahead = list(reversed(argv))

    def value_of(name: str) -> str:
        if not ahead:
            raise Misused(f"option {name}: requires parameter")
        return ahead.pop()

    while ahead:
        word = ahead.pop()
        if word == "--":
            options.urls += reversed(ahead)
            break
        if word.startswith("--"):
            _long(options, word, value_of)
        elif word.startswith("-") and word != "-":
            _short(options, word, value_of)
        else:
            options.urls.append(word)
    if not options.urls:
        raise Misused("no URL specified")
    return options


def _long(options: Options, word: str, value_of: Callable[[str], str]) -> None:
    name = word[2:]
    if name in REFUSED:
        raise Misused(f"option {word}: {REFUSED[name]}")
    if name in LONG_FLAGS:
        _flag(options, name)
    elif name in LONG_VALUES:
        _value(options, name, value_of(word))
    else:
        raise Misused(f"option {word}: is unknown here")


def _short(options: Options, word: str, value_of: Callable[[str], str]) -> None:
    """A cluster: flags, of which the last may take what is left of the word, or the next one, as its value."""
    for place, letter in enumerate(word[1:], start=1):
        if letter in REFUSED:
            raise Misused(f"option -{letter}: {REFUSED[letter]}")
        if letter in VALUES:
            _value(options, VALUES[letter], word[place + 1 :] or value_of(f"-{letter}"))
            return
        if letter not in FLAGS:
            raise Misused(f"option -{letter}: is unknown here")
        _flag(options, FLAGS[letter])


def _flag(options: Options, name: str) -> None:
    if name == "remote-name":
        options.outputs.append(None)
    else:
        options.flags.add(name)


def _value(options: Options, name: str, value: str) -> None:
    if name == "header":
        options.headers.append(value)
    elif name in DATA:
        options.data.append((name, value))
    elif name == "url":
        options.urls.append(value)
    elif name == "output":
        options.outputs.append(value)
    else:
        options.single[name] = value

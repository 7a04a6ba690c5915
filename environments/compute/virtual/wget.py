"""``wget`` in a virtual workspace: ``wget [-q] [-nv] [-S] [-O FILE] [--header LINE] [-U AGENT] [-T SECONDS] URL...``.

Exit codes are wget's: 2 for a command line, 3 for files, 4 for the network, 5 for certificates, 8 for an error that the
server answered.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from environments.compute.virtual.curl import Means, Result
from environments.compute.virtual.landing import READ_FAILED, WRITE_FAILED, Printed, Sink
from environments.compute.virtual.transfer import UNVERIFIED, Ask, Failure, Got, Transfer
from environments.compute.virtual.urls import BadUrl, Url, parse

AGENT = "Wget/1.21 (nylorun)"
USAGE, FILES, NETWORK, CERTIFICATE, SERVER = 2, 3, 4, 5, 8
MAX_REDIRECTS = 10
NAMES_TRIED = 100
_FLAGS = {"q": "quiet", "S": "server-response"}
_VALUES = {"O": "output-document", "U": "user-agent", "T": "timeout"}
_LONG_FLAGS = frozenset(("quiet", "no-verbose", "server-response"))
_LONG_VALUES = frozenset((*_VALUES.values(), "header", "post-data"))


class _Misused(ValueError):
    """A command line that is not served."""


@dataclass(slots=True)
class _Options:
    flags: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    headers: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)


def run(argv: list[str], means: Means) -> Result:
    """One call of ``wget``; raises nothing for what a server or the caller does."""
    try:
        return _Wget(_read(argv), means).run()
    except _Misused as misused:
        return Result(err=f"wget: {misused}\n", code=USAGE)


class _Wget:
    def __init__(self, options: _Options, means: Means) -> None:
        self._options = options
        self._means = means
        self._printed = Printed()
        self._notes: list[str] = []
        self._limit = _seconds(options.values.get("timeout"))
        self._headers = _headers(options)
        self._document = options.values.get("output-document")
        self._shared: Sink | None = None

    def run(self) -> Result:
        code = 0
        for text in self._options.urls:
            code = self._attempt(text) or code
        try:
            if self._shared is not None:
                self._shared.close()
            out = self._printed.text()
        except Failure as failure:
            out, code = "", self._complain(FILES, failure.message)
        return Result(out, "".join(f"{note}\n" for note in self._notes), code)

    def _complain(self, code: int, message: str) -> int:
        if "quiet" not in self._options.flags:
            self._notes.append(f"wget: {message}")
        return code

    def _attempt(self, text: str) -> int:
        try:
            return self._fetch(parse(text))
        except BadUrl as bad:
            return self._complain(1, f"{text}: {bad}")
        except Failure as failure:
            kinds = {UNVERIFIED: CERTIFICATE, WRITE_FAILED: FILES, READ_FAILED: FILES}
            return self._complain(kinds.get(failure.code, NETWORK), failure.message)
        finally:
            self._means.outside.release()

    def _fetch(self, url: Url) -> int:
        until = None if self._limit is None else time.monotonic() + self._limit
        transfer = Transfer(self._means.outside, until=until, note=lambda line: None)
        body = self._options.values.get("post-data")
        ask = Ask("GET" if body is None else "POST", url, self._headers, None if body is None else body.encode())
        got = transfer.follow(ask, MAX_REDIRECTS)
        if "server-response" in self._options.flags:
            self._notes += "".join(got.said).splitlines()
        if got.status >= 400:
            return self._complain(SERVER, f"{url}: server returned error: HTTP/1.1 {got.status} {got.response.reason}")
        path = self._save(got, url)
        transfer.done(got)
        if not self._options.flags & {"quiet", "no-verbose"} and path != "-":
            self._notes.append(f"'{path}' saved")
        return 0

    def _save(self, got: Got, url: Url) -> str:
        path = self._document or self._free(url.name or "index.html")
        sink = self._sink(path)
        try:
            for piece in got.body():
                sink.write(piece)
        finally:
            if sink is not self._shared:
                sink.close()
        return path

    def _sink(self, path: str) -> Sink:
        """Where the body goes; with ``-O`` all bodies go to one file."""
        if path in ("-", "/dev/stdout"):
            return self._printed
        if self._document is None:
            return self._means.landing.open(path)
        if self._shared is None:
            self._shared = self._means.landing.open(path)
        return self._shared

    def _free(self, name: str) -> str:
        """A name that nothing has yet."""
        name = name.replace("/", "_")
        names = [name, *(f"{name}.{number}" for number in range(1, NAMES_TRIED))]
        for one in names:
            if not self._means.landing.exists(one):
                return one
        raise Failure(WRITE_FAILED, f"{name}: too many files of this name")


def _read(argv: list[str]) -> _Options:
    options = _Options()
    ahead = list(reversed(argv))
    while ahead:
        word = ahead.pop()
        if word.startswith("--"):
            _long(options, word, ahead)
        elif word == "-nv":
            options.flags.add("no-verbose")
        elif word.startswith("-") and word != "-":
            _short(options, word, ahead)
        else:
            options.urls.append(word)
    if not options.urls:
        raise _Misused("missing URL")
    return options


def _long(options: _Options, word: str, ahead: list[str]) -> None:
    name, sign, value = word[2:].partition("=")
    if name == "no-check-certificate":
        raise _Misused("certificates are always verified here")
    if name in _LONG_FLAGS and not sign:
        options.flags.add(name)
    elif name in _LONG_VALUES:
        _take(options, name, value if sign else _next(word, ahead))
    else:
        raise _Misused(f"unrecognized option '{word}': it is unknown here")


def _short(options: _Options, word: str, ahead: list[str]) -> None:
    for place, letter in enumerate(word[1:], start=1):
        if letter in _VALUES:
            _take(options, _VALUES[letter], word[place + 1 :] or _next(f"-{letter}", ahead))
            return
        if letter not in _FLAGS:
            raise _Misused(f"invalid option -- '{letter}': it is unknown here")
        options.flags.add(_FLAGS[letter])


def _next(word: str, ahead: list[str]) -> str:
    if not ahead:
        raise _Misused(f"option '{word}' requires an argument")
    return ahead.pop()


def _take(options: _Options, name: str, value: str) -> None:
    if name == "header":
        options.headers.append(value)
    else:
        options.values[name] = value


def _seconds(text: str | None) -> float | None:
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = -1.0
    if value is not None and not 0 <= value < 1e9:
        raise _Misused("--timeout: not a number of seconds")
    return value or None


def _headers(options: _Options) -> tuple[tuple[str, str], ...]:
    wanted = [("User-Agent", options.values.get("user-agent", AGENT)), ("Accept", "*/*")]
    if "post-data" in options.values:
        wanted.append(("Content-Type", "application/x-www-form-urlencoded"))
    for line in options.headers:
        name, sign, value = line.partition(":")
        if not sign or any(character in line for character in "\r\n\0"):
            raise _Misused(f"--header: {name[:40]!r} is no header")
        wanted = [pair for pair in wanted if pair[0].lower() != name.strip().lower()]
        wanted.append((name.strip(), value.strip()))
    return tuple(wanted)

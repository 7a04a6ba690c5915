"""``curl`` in a virtual workspace: a sound part of it, over the call's way out.

A reader may rely on: exit codes are curl's; an option that is not served ends with code 2 and says so; certificates are
always verified; what is printed is complete or an error says why it is not.
Standard input and output are text here; other bytes go through files (``-o FILE``, ``--data-binary @FILE``).
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from urllib.parse import quote_plus

from environments.compute.virtual import curl_options
from environments.compute.virtual.curl_options import Misused, Options
from environments.compute.virtual.landing import READ_FAILED, WRITE_FAILED, Landing, Printed, Sink
from environments.compute.virtual.outside import Outside
from environments.compute.virtual.transfer import Ask, Failure, Got, Transfer
from environments.compute.virtual.urls import BadUrl, Url, parse

AGENT = "curl/8.0 (nylorun)"
UNSUPPORTED, USAGE, MALFORMED, HTTP_ERROR = 1, 2, 3, 22
_OURS = frozenset(("content-length", "transfer-encoding", "connection"))
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


@dataclass(slots=True)
class Result:
    """What a program printed, and its exit code."""

    out: str = ""
    err: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True)
class Means:
    """What a program works with. ``stdin`` is ``None`` when nothing is piped in."""

    outside: Outside
    landing: Landing
    stdin: str | None


def run(argv: list[str], means: Means) -> Result:
    """One call of ``curl``; raises nothing for what a server or the caller does."""
    if argv in (["-V"], ["--version"], ["-h"], ["--help"]):
        return Result(f"{AGENT}: a part of curl, built into virtual workspaces\nProtocols: http https\n{_options()}")
    try:
        options = curl_options.read(argv)
        return _Curl(options, means).run()
    except Misused as misused:
        return Result(err=f"curl: {misused}\n", code=USAGE)


class _Curl:
    def __init__(self, options: Options, means: Means) -> None:
        self._options = options
        self._means = means
        self._printed = Printed()
        self._notes: list[str] = []
        options.seconds("connect-timeout")  # the gate has its own; only its form is checked
        self._limit = options.seconds("max-time")
        self._redirects = options.redirects
        self._code = 0
        self._quiet = options.has("silent") and not options.has("show-error")

    def run(self) -> Result:
        for number, text in enumerate(self._options.urls):
            self._code = self._attempt(text, number)
        try:
            out = self._printed.text()
        except Failure as failure:
            out, self._code = "", self._complain(failure.code, failure.message)
        return Result(out, "".join(f"{note}\n" for note in self._notes), self._code)

    def _attempt(self, text: str, number: int) -> int:
        try:
            return self._fetch(parse(text), number)
        except BadUrl as bad:
            return self._complain(UNSUPPORTED if bad.scheme else MALFORMED, str(bad))
        except Failure as failure:
            return self._complain(failure.code, failure.message)
        finally:
            self._means.outside.release()

    def _complain(self, code: int, message: str) -> int:
        if not self._quiet:
            self._notes.append(f"curl: ({code}) {message}")
        return code

    def _fetch(self, url: Url, number: int) -> int:
        began = time.monotonic()
        until = None if self._limit is None else began + self._limit
        transfer = Transfer(self._means.outside, until=until, note=self._note)
        got = transfer.follow(self._ask(url), self._redirects)
        self._note(f"< {got.said[-1].splitlines()[0]}")
        failed = got.status >= 400 and (self._options.has("fail") or self._options.has("fail-with-body"))
        self._print_heads(got)
        size = 0 if failed and not self._options.has("fail-with-body") else self._keep(got, url, number)
        self._write_out(got, size, time.monotonic() - began)
        transfer.done(got)
        return self._complain(HTTP_ERROR, f"The requested URL returned error: {got.status}") if failed else 0

    # ------------------------------------------------------------------------------------------------- the request

    def _ask(self, url: Url) -> Ask:
        options = self._options
        body = self._body()
        if body is not None and options.has("get"):
            url, body = url.with_query(body.decode("utf-8", "replace")), None
        if "upload-file" in options.single:
            body = self._means.landing.read(options.single["upload-file"])
        method = options.single.get("request") or self._method(body)
        if not method or not set(method) <= _TOKEN:
            raise Failure(MALFORMED, "the method is no word of HTTP")
        return Ask(method, url, tuple(self._headers(url, body)), body, forced="request" in options.single)

    def _method(self, body: bytes | None) -> str:
        if self._options.has("head"):
            return "HEAD"
        if "upload-file" in self._options.single:
            return "PUT"
        return "GET" if body is None else "POST"

    def _body(self) -> bytes | None:
        if not self._options.data:
            return None
        parts = [self._part(kind, text) for kind, text in self._options.data]
        return (b"" if self._options.data[0][0] == "json" else b"&").join(parts)

    def _part(self, kind: str, text: str) -> bytes:
        if kind == "data-urlencode":
            return self._encoded(text)
        if kind == "data-raw" or not text.startswith("@"):
            return text.encode("utf-8")
        data = self._input(text[1:])
        if kind in ("data", "data-ascii"):
            return data.translate(None, b"\r\n\0")
        return data

    def _encoded(self, text: str) -> bytes:
        name, sign, content = text.partition("=")
        if sign:
            return f"{name}{'=' if name else ''}{quote_plus(content)}".encode()
        name, sign, path = text.partition("@")
        if sign:
            return f"{name}{'=' if name else ''}{quote_plus(self._input(path))}".encode()
        return quote_plus(text).encode()

    def _input(self, path: str) -> bytes:
        if path != "-":
            return self._means.landing.read(path)
        text = self._means.stdin or ""
        if "\ufffd" in text:
            raise Failure(READ_FAILED, "standard input is not UTF-8 text; put it into a file and name that: @FILE")
        return text.encode("utf-8")

    def _headers(self, url: Url, body: bytes | None) -> list[tuple[str, str]]:
        given = [_header(line) for line in self._options.headers]
        replaced = {name.lower() for name, _ in given}
        wanted = [pair for pair in self._defaults(url, body) if pair[0].lower() not in replaced]
        wanted += [(name, value) for name, value in given if value is not None and name.lower() not in _OURS]
        return [(name, _clean(value)) for name, value in wanted]

    def _defaults(self, url: Url, body: bytes | None) -> list[tuple[str, str]]:
        single = self._options.single
        wanted = [("User-Agent", single.get("user-agent", AGENT)), ("Accept", "*/*")]
        user = single.get("user", url.user)
        if user is not None:
            wanted.append(("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}"))
        wanted += [(name, single[key]) for key, name in (("referer", "Referer"), ("cookie", "Cookie")) if key in single]
        if "range" in single:
            wanted.append(("Range", f"bytes={single['range']}"))
        if body is not None and any(kind == "json" for kind, _ in self._options.data):
            wanted[1] = ("Accept", "application/json")
            wanted.append(("Content-Type", "application/json"))
        elif body is not None and "upload-file" not in single:
            wanted.append(("Content-Type", "application/x-www-form-urlencoded"))
        return wanted

    # -------------------------------------------------------------------------------------------------- the answer

    def _note(self, line: str) -> None:
        if self._options.has("verbose"):
            self._notes.append(line)

    def _print_heads(self, got: Got) -> None:
        heads = "".join(got.said).encode("utf-8", "replace")
        if self._options.has("include") or self._options.has("head"):
            self._printed.write(heads)
        if "dump-header" in self._options.single:
            sink = self._sink(self._options.single["dump-header"])
            sink.write(heads)
            sink.close()

    def _keep(self, got: Got, url: Url, number: int) -> int:
        """Put the body where it belongs; gives its size."""
        sink, size = self._sink(self._target(url, number)), 0
        try:
            for piece in got.body():
                sink.write(piece)
                size += len(piece)
        finally:
            sink.close()
        return size

    def _target(self, url: Url, number: int) -> str:
        if number >= len(self._options.outputs):
            return "-"
        path = self._options.outputs[number]
        if path is not None:
            return path
        if not url.name or "/" in url.name:
            raise Failure(WRITE_FAILED, "Remote file name has no length")
        return url.name

    def _sink(self, path: str) -> Sink:
        return self._printed if path in ("-", "/dev/stdout") else self._means.landing.open(path)

    def _write_out(self, got: Got, size: int, seconds: float) -> None:
        template = self._options.single.get("write-out")
        if template is None:
            return
        if template.startswith("@"):
            template = self._input(template[1:]).decode("utf-8", "replace")
        known = {
            "http_code": f"{got.status:03d}",
            "response_code": f"{got.status:03d}",
            "size_download": str(size),
            "num_redirects": str(got.redirects),
            "url_effective": str(got.ask.url),
            "url": self._options.urls[0],
            "content_type": got.response.headers.get("Content-Type", ""),
            "redirect_url": got.response.headers.get("Location", ""),
            "method": got.ask.method,
            "scheme": got.ask.url.scheme,
            "time_total": f"{seconds:.6f}",
            "exitcode": "0",
        }
        self._printed.write(_filled(template, known).encode("utf-8", "replace"))


def _options() -> str:
    flags = [f"-{letter}/--{name}" for letter, name in curl_options.FLAGS.items()]
    values = [f"-{letter}/--{name} VALUE" for letter, name in curl_options.VALUES.items()]
    others = sorted(curl_options.LONG_FLAGS - set(curl_options.FLAGS.values()))
    valued = sorted(curl_options.LONG_VALUES - set(curl_options.VALUES.values()))
    all_of_them = [*flags, *values, *(f"--{name}" for name in others), *(f"--{name} VALUE" for name in valued)]
    return f"Options: {', '.join(all_of_them)}\n"


def _filled(template: str, known: dict[str, str]) -> str:
    """``template`` with ``%{name}`` and escapes replaced; a name that is not known is nothing."""
    out, rest = [], template
    while rest:
        if rest.startswith("%%"):
            out.append("%")
            rest = rest[2:]
        elif rest.startswith("%{") and "}" in rest:
            name, _, rest = rest[2:].partition("}")
            out.append(known.get(name, ""))
        elif rest[0] == "\\" and rest[1:2] in _ESCAPES:
            out.append(_ESCAPES[rest[1]])
            rest = rest[2:]
        else:
            out.append(rest[0])
            rest = rest[1:]
    return "".join(out)


def _header(line: str) -> tuple[str, str | None]:
    """Name and value of ``-H``; no value: the header is not sent."""
    name, sign, value = line.partition(":")
    if not sign and line.endswith(";"):
        name, sign = line[:-1], ";"
    name = name.strip()
    if not sign or not name or not set(name) <= _TOKEN:
        raise Misused(f"option -H: {name[:40]!r} is no header")
    return name, value.strip() or (None if sign == ":" else "")


def _clean(text: str) -> str:
    if any(character in text for character in "\r\n\0"):
        raise Failure(MALFORMED, "a header is one line")
    return text

"""``curl`` in a virtual workspace: a sound part of it, over the call's way out.

A reader may rely on: exit codes are curl's; an option that is not served ends with code 2 and says so; certificates are
always verified; what is printed is complete or an error says why it is not.
Standard input and output are text here; other bytes go through files (``-o FILE``, ``--data-binary @FILE``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from environments.compute.virtual import curl_options
from environments.compute.virtual.curl_options import Misused, Options
from environments.compute.virtual.curl_request import AGENT, MALFORMED, Request
from environments.compute.virtual.landing import WRITE_FAILED, Landing, Printed, Sink
from environments.compute.virtual.outside import Outside
from environments.compute.virtual.transfer import Failure, Got, Transfer
from environments.compute.virtual.urls import BadUrl, Url, parse

UNSUPPORTED, USAGE, HTTP_ERROR = 1, 2, 22
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
        self._request = Request(options, means.landing, means.stdin)
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
        got = transfer.follow(self._request.ask(url), self._redirects)
        self._note(f"< {got.said[-1].splitlines()[0]}")
        failed = got.status >= 400 and (self._options.has("fail") or self._options.has("fail-with-body"))
        self._print_heads(got)
        size = 0 if failed and not self._options.has("fail-with-body") else self._keep(got, url, number)
        self._write_out(got, size, time.monotonic() - began)
        transfer.done(got)
        return self._complain(HTTP_ERROR, f"The requested URL returned error: {got.status}") if failed else 0

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
            template = self._request.input(template[1:]).decode("utf-8", "replace")
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

"""`nylorun secrets`: an HTTP client that takes values from its input alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nylorun.cli import secrets
from nylorun.cli.main import main

VALUE = "s3cret value"


class Server:
    """An API that keeps what it is asked and gives one answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answer: tuple[int, Any] = (200, {"name": "KEY", "type": "bearer", "createdAt": "t"})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, json.loads(data) if data else None))
                body = json.dumps(outer.answer[1]).encode()
                self.send_response(outer.answer[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_DELETE = _any

            def log_message(self, *_: Any) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    monkeypatch.setenv("NYLORUN_URL", made.url)
    monkeypatch.setenv("NYLORUN_API_KEY", "key")
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def value(tmp_path: Path) -> str:
    """A file that holds the value and one newline."""
    (tmp_path / "value").write_text(VALUE + "\n")
    return str(tmp_path / "value")


def test_a_value_comes_from_a_file_and_the_options_say_what_it_is(
    server: Server, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --type the Slot decides; one newline at the end is no part of the value."""
    assert main(["secrets", "set", "team/one", "KEY", "--from-file", value]) == 0
    options = ["--type", "environment_secret", "--host", "a.org", "--host", "b.org", "--header", "X-K"]
    assert main(["secrets", "set", "one", "KEY", "--from-file", value, *options]) == 0
    bearer = ["--type", "bearer", "--url", "https://a.org/v1", "--via", "http://127.0.0.1:1"]
    assert main(["secrets", "set", "one", "KEY", "--from-file", value, *bearer]) == 0
    bound = {"allowedHosts": ["a.org", "b.org"], "inject": {"header": "X-K", "format": "{value}"}}
    assert server.asked == [
        ("PUT", "/v1/environments/team%2Fone/secrets/KEY", {"value": VALUE}),
        ("PUT", "/v1/environments/one/secrets/KEY", {"type": "environment_secret", **bound, "value": VALUE}),
        (
            "PUT",
            "/v1/environments/one/secrets/KEY",
            {"type": "bearer", "url": "https://a.org/v1", "via": "http://127.0.0.1:1", "value": VALUE},
        ),
    ]
    assert VALUE not in "".join(capsys.readouterr())


def test_headers_are_lines(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``Name: value`` each; a line without a colon is refused and not repeated."""
    (tmp_path / "lines").write_text(f"X-One: {VALUE}\nX-Two: a:b\n\n")
    lines = ["secrets", "set", "one", "KEY", "--from-file", str(tmp_path / "lines")]
    assert main([*lines, "--headers"]) == 0
    assert server.asked[0][2] == {"headers": {"X-One": VALUE, "X-Two": "a:b"}}
    (tmp_path / "lines").write_text(VALUE)
    assert main([*lines, "--type", "headers", "--url", "https://a.org"]) == 1
    assert VALUE not in "".join(capsys.readouterr())
    assert len(server.asked) == 1


def test_what_the_api_refuses_is_told_with_its_problems(
    server: Server, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [{"path": "/value", "message": "must be shorter"}]
    server.answer = (
        400,
        {"code": "invalid_request", "message": "The request is wrong.", "details": {"problems": problems}},
    )
    assert main(["secrets", "set", "one", "KEY", "--from-file", value]) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == ["nylorun: The request is wrong.", "  /value must be shorter"]


def test_list_and_rm(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, types, targets and times."""
    infos = [
        {"name": "A", "type": "environment_variable", "createdAt": "t1"},
        {"name": "B", "type": "bearer", "url": "https://a.org", "createdAt": "t1", "rotatedAt": "t2"},
    ]
    server.answer = 200, {"secrets": infos}
    assert main(["secrets", "list", "one"]) == 0
    assert capsys.readouterr().out.splitlines() == ["A\tenvironment_variable\t\tt1", "B\tbearer\thttps://a.org\tt2"]
    for deleted, told in ((True, "A is gone"), (False, "there is no A")):
        server.answer = 200, {"name": "A", "deleted": deleted}
        assert main(["secrets", "rm", "one", "A"]) == 0
        assert capsys.readouterr().out.strip() == told
    assert [asked[:2] for asked in server.asked[1:]] == [("DELETE", "/v1/environments/one/secrets/A")] * 2


def test_no_argument_takes_a_value(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments are seen by every user of the machine: a third word is wrong usage."""
    with pytest.raises(SystemExit) as ended:
        main(["secrets", "set", "one", "KEY", VALUE])
    assert ended.value.code == 2


def test_a_data_folder_names_the_api_and_without_one_the_next_step_is_told(
    server: Server, tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NYLORUN_URL")
    command = ["secrets", "set", "one", "KEY", "--from-file", value, "--data-dir", str(tmp_path)]
    assert main(command) == 1
    assert "--data-dir" in capsys.readouterr().err
    (tmp_path / "connection.json").write_text(json.dumps({"url": server.url, "applicationKey": "k"}))
    assert main(command) == 0


def test_standard_input_is_the_value(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is read whole; a terminal is asked without echo."""

    class Terminal:
        def __init__(self, text: str, *, tty: bool) -> None:
            self.text, self.tty = text, tty

        def isatty(self) -> bool:
            return self.tty

        def read(self) -> str:
            return self.text

    monkeypatch.setattr(secrets.sys, "stdin", Terminal("a\nb\n\n", tty=False))
    assert main(["secrets", "set", "one", "KEY"]) == 0
    monkeypatch.setattr(secrets.sys, "stdin", Terminal("", tty=True))
    monkeypatch.setattr(secrets.getpass, "getpass", lambda prompt: VALUE)
    assert main(["secrets", "set", "one", "KEY"]) == 0
    assert [asked[2] for asked in server.asked] == [{"value": "a\nb\n"}, {"value": VALUE}]

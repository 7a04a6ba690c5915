"""`nylorun secrets`: a value comes from its input alone, leaves over TLS where that was named, and is never shown."""

from __future__ import annotations

import io
import socket
import threading
from pathlib import Path

import pytest

from nylorun.cli.main import main
from tests.embedded.asked import VALUE, Server


@pytest.mark.parametrize(
    "words",
    [
        ["set", "one", "KEY", VALUE],
        ["set", "one", "KEY", "--value", VALUE],
        ["set", "one", f"KEY={VALUE}"],
        ["set", "one", "KEY", "--type", VALUE],
        ["set", "one", "KEY", "--type", "environment_secret", "--header", f"X-Key: {VALUE}"],
        ["set", "one", "KEY", "--type", "environment_secret", "--format", f"Bearer {VALUE}"],
        ["rm", "one", "KEY", VALUE],
        ["list", "one", VALUE],
    ],
)
def test_an_argument_that_looks_like_a_value_is_refused_and_not_repeated(
    server: Server, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments are seen by every user of the machine: wrong usage, before anything is asked or read."""
    with pytest.raises(SystemExit) as ended:
        main(["secrets", *words])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert VALUE not in said.out + said.err
    assert "--from-file" in said.err or "environment_variable" in said.err
    assert server.asked == []


@pytest.mark.parametrize("broken", ["{", '{"url": "http://127.0.0.1:1"}'])
def test_a_broken_file_of_the_data_folder_is_no_traceback(
    tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NYLORUN_URL", raising=False)
    (tmp_path / "connection.json").write_text(broken)
    assert main(["secrets", "list", "one", "--data-dir", str(tmp_path)]) == 1
    assert "--data-dir" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:port", "127.0.0.1:8000"])
def test_an_api_that_does_not_answer_is_one_line(
    url: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NYLORUN_URL", url)
    monkeypatch.setenv("NYLORUN_API_KEY", "key")
    assert main(["secrets", "set", "one", "KEY", "--from-file", value]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert VALUE not in said


def test_an_https_api_gets_nothing_in_clear(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key and value leave only over TLS: what a server sees first is a handshake."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                got.append(connection.recv(65536))

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("NYLORUN_URL", f"https://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("NYLORUN_API_KEY", "the-key")
        assert main(["secrets", "set", "one", "KEY", "--from-file", value]) == 1
        thread.join()
    assert got[0][:2] == b"\x16\x03"
    assert b"the-key" not in got[0]


class Input:
    """Standard input: a terminal, or a pipe with these bytes."""

    def __init__(self, data: bytes, *, tty: bool) -> None:
        self.buffer, self.tty = io.BytesIO(data), tty

    def isatty(self) -> bool:
        return self.tty


def test_standard_input_is_the_value(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is read whole and as it is, without one newline at its end; a terminal is asked without echo."""
    for data in (b"a\nb\n\n", b"a\r\nb\r\n", b"a\r", "ä".encode()):
        monkeypatch.setattr("sys.stdin", Input(data, tty=False))
        assert main(["secrets", "set", "one", "KEY"]) == 0
    monkeypatch.setattr("sys.stdin", Input(b"", tty=True))
    monkeypatch.setattr("getpass.getpass", lambda prompt: VALUE)
    assert main(["secrets", "set", "one", "KEY"]) == 0
    assert [asked[2]["value"] for asked in server.asked] == ["a\nb\n", "a\r\nb", "a\r", "ä", VALUE]


def test_what_cannot_be_read_is_told_without_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file, bytes that are no text, a prompt that is left: one line, and nothing is asked."""

    def left(prompt: str) -> str:
        raise KeyboardInterrupt

    assert main(["secrets", "set", "one", "KEY", "--from-file", str(tmp_path / "none")]) == 1
    monkeypatch.setattr("sys.stdin", Input(VALUE.encode() + b"\xff", tty=False))
    assert main(["secrets", "set", "one", "KEY"]) == 1
    monkeypatch.setattr("sys.stdin", Input(b"", tty=True))
    monkeypatch.setattr("getpass.getpass", left)
    assert main(["secrets", "set", "one", "KEY"]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 3
    assert VALUE not in said
    assert server.asked == []

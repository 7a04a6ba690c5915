"""`nylorun secrets`: what is asked of the API, and what is shown of its answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nylorun.cli.main import main
from tests.embedded.asked import VALUE, Server


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
    """The message of one problem names it; several are told line by line."""
    two = [{"path": "/value", "message": "must be shorter"}, {"path": "/url", "message": "must be https"}]
    for message, problems in (("1 problem: /value: must be shorter.", two[:1]), ("2 problems: /value, /url.", two)):
        server.answer = 400, {"code": "invalid_request", "message": message, "details": {"problems": problems}}
        assert main(["secrets", "set", "one", "KEY", "--from-file", value]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "nylorun: 1 problem: /value: must be shorter.",
        "nylorun: 2 problems: /value, /url.",
        "  /value must be shorter",
        "  /url must be https",
    ]


def test_list_and_rm(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of names, types, targets with their headers, and both times."""
    inject = {"header": "X-K", "format": "{value}"}
    server.answer = 200, {"secrets": [
        {"name": "A", "type": "environment_variable", "createdAt": "t1"},
        {"name": "B", "type": "headers", "url": "https://a.org", "via": "http://[::1]:1", "headerNames": ["p", "q"],
         "createdAt": "t1", "rotatedAt": "t2"},
        {"name": "C", "type": "environment_secret", "allowedHosts": ["a.org", "b.org"], "inject": inject,
         "createdAt": "t3"},
    ]}  # fmt: skip
    assert main(["secrets", "list", "one"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME  TYPE                  TARGET                                   SET  ROTATED",
        "A     environment_variable  -                                        t1   -",
        "B     headers               https://a.org via http://[::1]:1 (p, q)  t1   t2",
        "C     environment_secret    a.org,b.org (X-K)                        t3   -",
    ]
    for deleted, told in ((True, "A is gone"), (False, "there is no A")):
        server.answer = 200, {"name": "A", "deleted": deleted}
        assert main(["secrets", "rm", "one", "A"]) == 0
        assert capsys.readouterr().out.strip() == told
    assert [asked[:2] for asked in server.asked[1:]] == [("DELETE", "/v1/environments/one/secrets/A")] * 2


def test_a_target_needs_a_type(server: Server, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a Slot decides, an option that says otherwise is not dropped in silence."""
    assert main(["secrets", "set", "one", "KEY", "--from-file", value, "--host", "a.org"]) == 1
    assert "--type" in capsys.readouterr().err
    assert server.asked == []


def test_a_header_has_its_usual_format(server: Server, value: str) -> None:
    """Authorization takes a bearer, every other header the value alone; --format says otherwise."""
    command = ["secrets", "set", "one", "KEY", "--from-file", value, "--type", "environment_secret", "--host", "a.org"]
    for options in (["--header", "authorization"], ["--header", "X-K"], ["--format", "Basic {base64:u:{value}}"]):
        assert main([*command, *options]) == 0
    assert [asked[2]["inject"] for asked in server.asked] == [
        {"header": "authorization", "format": "Bearer {value}"},
        {"header": "X-K", "format": "{value}"},
        {"header": "Authorization", "format": "Basic {base64:u:{value}}"},
    ]


def test_a_data_folder_names_the_api_and_without_one_the_next_step_is_told(
    server: Server, tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NYLORUN_URL")
    command = ["secrets", "set", "one", "KEY", "--from-file", value, "--data-dir", str(tmp_path)]
    assert main(command) == 1
    assert "--data-dir" in capsys.readouterr().err
    (tmp_path / "connection.json").write_text(json.dumps({"url": server.url, "applicationKey": "k"}))
    assert main(command) == 0


def test_a_path_of_the_url_stands_before_the_route(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NYLORUN_URL", f"{server.url}/behind/")
    server.answer = 200, {"secrets": []}
    assert main(["secrets", "list", "one"]) == 0
    assert server.asked[0][1] == "/behind/v1/environments/one/secrets"

"""Values of Secrets are nowhere but sealed: unique values through every route, failure and accident, then looked for.

Looked at: every file of the installation but those that are secret themselves (among them the database's own, the
broker's, logs and run files), every row of every table, every key of the broker, every blob as it is read, what the API
tells of itself, and the environment and command line of every process.
"""

from __future__ import annotations

import base64
import http.client
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import psycopg
import pytest
import redis
from psycopg import sql

from nylorun.blobs import FileSystemStore
from nylorun.blobs.blob import unpack_blob
from nylorun.cli.client import environment_path
from tests.support.platform import Platform, eventually, platform

pytestmark = pytest.mark.live

LEFT_OUT = {"keyring", "secret_key", "application.key", "connection.json", "environment.json", "disk.img"}
POD = {"kind": "pod", "network": {"allow": ["*.example.com"]}, "resources": {"cpus": 1, "memory": "256MiB"}}


@pytest.fixture
def live() -> Iterator[Platform]:
    """A platform of its own, so that everything in it is this test's."""
    with platform() as running:
        yield running


class Canaries:
    """Values that occur nowhere else, and the forms in which one could have been written down."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def new(self, what: str) -> str:
        """Another value."""
        self.values.append(f'{what}"+/&\\ {secrets.token_hex(12)}')
        return self.values[-1]

    def forms(self) -> Iterator[bytes]:
        """Each value as it is, as base64 at each alignment, as hex, for a URL, in JSON, and in part."""
        for value in self.values:
            plain = value.encode()
            yield plain
            yield value[-24:].encode()
            yield plain.hex().encode()
            yield quote(value, safe="").encode()
            yield json.dumps(value)[1:-1].encode()
            for start in range(3):
                whole = plain[start : start + (len(plain) - start) // 3 * 3]
                yield base64.b64encode(whole)
                yield base64.urlsafe_b64encode(whole)

    def found_in(self, data: bytes) -> list[bytes]:
        """The forms that ``data`` holds."""
        return [form for form in set(self.forms()) if form in data]


def bodies(canaries: Canaries) -> dict[str, dict[str, Any]]:
    """One Secret of each type, with new values."""
    return {
        "VARIABLE": {"type": "environment_variable", "value": canaries.new("variable")},
        "HOST": {"type": "environment_secret", "allowedHosts": ["a.example.com"], "value": canaries.new("host")},
        "BEARER": {"type": "bearer", "url": "https://b.example.com/v1", "value": canaries.new("bearer")},
        "HEADERS": {"type": "headers", "url": "https://c.example.com", "headers": {"X-K": canaries.new("headers")}},
    }


def ask(live: Platform, method: str, path: str, body: Any = None, **headers: str) -> int:
    """Any request, whatever comes of it: its status. A body that is bytes is sent as it is."""
    url = urlsplit(live.client.url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
    shown = {"Authorization": f"Bearer {live.client.key}", "Content-Type": "application/json", **headers}
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, {name.replace("_", "-"): value for name, value in shown.items()})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):  # the process was killed meanwhile
        return 0
    finally:
        connection.close()


def write_all(live: Platform, id: str, canaries: Canaries) -> None:
    """Every write that is taken, twice, and every way in which one is refused."""
    base = environment_path(id, "/secrets/")
    for name, body in bodies(canaries).items():
        assert ask(live, "PUT", base + name, body) == 201
    for name, body in bodies(canaries).items():
        assert ask(live, "PUT", base + name, body, Idempotency_Key=f"{id}-{name}") == 200
        assert ask(live, "PUT", base + name, body, Idempotency_Key=f"{id}-{name}") == 200
        assert ask(live, "PUT", base + name, {**bodies(canaries)[name]}, Idempotency_Key=f"{id}-{name}") == 409
    value = canaries.new("refused")
    refused: list[tuple[str, Any]] = [
        ("PATH", {"type": "environment_variable", "value": value}),
        ("N", {"type": "environment_variable", "value": value + "\0"}),
        ("N", {"type": "environment_variable", "value": value * 3000}),
        ("N", {"type": "bearer", "url": "https://b.example.com/v1", "value": value + "\r\n"}),
        ("N", {"type": "bearer", "url": "https://b.example.com/v1/more", "value": value}),
        ("N", {"type": "nonsense", "value": value, value: value}),
        ("N", {"value": value}),
        ("N", [value]),
        ("N", b'{"value": "' + value.replace('"', "").encode()),
        ("VARIABLE", {"type": "bearer", "url": "https://z.example.com", "value": value}),
        (quote(value, safe=""), {"type": "environment_variable", "value": value}),
    ]
    for name, body in refused:
        if name != quote(value, safe=""):  # a value that a caller puts into a URL is the caller's to lose
            assert 400 <= ask(live, "PUT", base + name, body) < 500, name
    ask(live, "DELETE", base + "N")


def use_all(live: Platform, id: str) -> None:
    """Calls that use the variable, fail with it, and reach for hosts."""
    tools = environment_path(id, "/tools/bash")
    for command in (
        'test -n "$VARIABLE" && echo ${#VARIABLE}',
        'no_such_program "$VARIABLE"; exit 3',
        "for host in a b c d; do curl -m 5 -s https://$host.example.com/ >/dev/null 2>&1; done; true",
    ):
        ask(live, "POST", tools, {"command": command})
        ask(live, "POST", tools, {"command": command}, Accept="text/event-stream")
    ask(live, "POST", tools, {"command": "sleep 30", "timeoutMs": 300})


@pytest.mark.parametrize("kind", ["pod", "virtual"])
def test_no_value_is_anywhere_but_sealed(live: Platform, kind: str) -> None:
    """E-70, E-265, E-293, pains 5, 36: whatever is done, and killed, with Secrets of every type."""
    canaries = Canaries()
    recipe = POD if kind == "pod" else {"kind": "virtual"}
    assert ask(live, "PUT", "/v1/environment-manifests/box", recipe) == 201
    assert ask(live, "PUT", environment_path("one"), {"manifest": "box"}) == 201
    write_all(live, "one", canaries)
    use_all(live, "one")
    for victim in ("worker", "worker-disk", "egress", "api"):
        assert ask(live, "PUT", environment_path("one", "/secrets/VARIABLE"), bodies(canaries)["VARIABLE"]) == 200
        ask(live, "POST", environment_path("one", "/snapshots"), Prefer="respond-async")
        live.kill(victim)
        eventually(live.ready, within=90, what=f"ready again after {victim}")
    eventually(lambda: ask(live, "POST", environment_path("one", "/snapshots")) in (200, 201), what="a snapshot")
    fork = {"id": "two", "manifest": "box"}
    assert ask(live, "POST", environment_path("one", "/fork"), {**fork, "dryRun": True}) == 200
    assert ask(live, "POST", environment_path("one", "/fork"), fork) == 201
    use_all(live, "two")
    assert ask(live, "POST", environment_path("one", "/restore"), {"version": 1}) == 200
    assert ask(live, "DELETE", environment_path("two", "?force=true")) == 200
    told = [
        json.dumps(live.client.expect(200, "GET", path)).encode()
        for path in (
            environment_path("one", "/secrets"),
            environment_path("one", "/events?limit=1000"),
            environment_path("two", "/events?limit=1000"),
            environment_path("one"),
            "/v1/openapi.json",
        )
    ]
    assert canaries.found_in(b"\n".join(told)) == []
    published = json.loads((live.folder / "run" / "environment.json").read_text())
    assert in_processes(live, canaries) == []
    assert in_rows(published["DATABASE_URL"], canaries) == []
    assert in_broker(published["REDIS_URL"], canaries) == []
    assert in_blobs(live.folder / "blobs", canaries) == []
    assert in_files(live.folder, canaries) == []


def in_files(folder: Path, canaries: Canaries) -> list[str]:
    """Files that hold a value. What a disk holds is looked at as blobs."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name not in LEFT_OUT and path.stat().st_blocks < 1 << 18:
            found += [f"{path}: {form!r}" for form in canaries.found_in(path.read_bytes())]
    return found


def in_rows(url: str, canaries: Canaries) -> list[str]:
    """Tables that hold a value, as text or as bytes."""
    found = []
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert ("public", "vault_secret") in tables
        for schema, name in tables:
            query = sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(schema, name))
            for (row,) in connection.execute(query):
                found += [f"{name}: {form!r}" for form in canaries.found_in(row.encode())]
    return found


def in_broker(url: str, canaries: Canaries) -> list[str]:
    """Keys that hold a value."""
    found = []
    with redis.Redis.from_url(url) as broker:
        for key in broker.scan_iter("*"):
            data = key + (broker.dump(key) or b"") + repr(_content(broker, key)).encode()
            found += [f"{key!r}: {form!r}" for form in canaries.found_in(data)]
    return found


def _content(broker: Any, key: bytes) -> object:
    kind = broker.type(key)
    if kind == b"string":
        return broker.get(key)
    if kind == b"list":
        return broker.lrange(key, 0, -1)
    if kind == b"hash":
        return broker.hgetall(key)
    if kind == b"zset":
        return broker.zrange(key, 0, -1)
    return broker.smembers(key) if kind == b"set" else b""


def in_blobs(folder: Path, canaries: Canaries) -> list[str]:
    """Blobs whose content holds a value."""
    store = FileSystemStore(folder)
    contents = ((blob.key, unpack_blob(blob.key, store.get(blob.key))) for blob in store.list())
    return [f"{key}: {form!r}" for key, content in contents for form in canaries.found_in(content)]


def in_processes(live: Platform, canaries: Canaries) -> list[str]:
    """Processes whose environment or command line holds a value."""
    found = []
    for process in [*psutil.Process(live.process.pid).children(recursive=True), *pods(live)]:
        try:
            data = b"".join(Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("environ", "cmdline"))
        except OSError:  # it has ended
            continue
        found += [f"{process.pid}: {form!r}" for form in canaries.found_in(data)]
    return found


def pods(live: Platform) -> list[psutil.Process]:
    """The processes of the pods, which are no children."""
    marks = [path.name for path in (live.folder / "pods").glob("sbx-*")]
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(mark in word for mark in marks for word in process.info["cmdline"] or ())
    ]

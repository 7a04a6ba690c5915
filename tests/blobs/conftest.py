"""The three stores, each made new, and the tools to write trees into them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nylorun.blobs import FileSystemStore, MemoryStore, Store, store_for


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server on loopback, reached over HTTP like a real one."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What boto3 looks for, and nothing that it finds on this machine."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


@pytest.fixture
def s3_bucket(s3_endpoint: str, s3_credentials: None) -> str:
    """A new bucket's name."""
    import boto3

    bucket = f"bucket-{uuid4().hex}"
    client: Any = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=bucket)
    return bucket


@pytest.fixture(params=["memory", "filesystem", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each kind of store, empty."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "filesystem":
        return FileSystemStore(tmp_path / "blobs")
    endpoint = request.getfixturevalue("s3_endpoint")
    bucket = request.getfixturevalue("s3_bucket")
    return store_for(f"s3://{bucket}/some/prefix?endpoint={endpoint}&region=us-east-1")


@pytest.fixture
def folder(tmp_path: Path) -> FileSystemStore:
    """A store in a folder."""
    return FileSystemStore(tmp_path / "blobs")

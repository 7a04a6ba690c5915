"""A store in an S3 bucket: the object ``<prefix>/<first two digits>/<key>``.

S3 answers a put when the object is durable, and reads after writes are consistent, so nothing more is needed here.
``boto3`` comes with the extra ``nylorun[s3]`` and is imported when the first store is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from nylorun.blobs.errors import BlobMissing, StoreUnavailable
from nylorun.blobs.store import StoredBlob, checked_key
from nylorun.kernel import clock

PAGE = 1000
_MISSING = {"404", "NoSuchKey", "NotFound"}


class S3Store:
    """Blobs as objects. The bucket must exist; the client is shared by all threads."""

    def __init__(
        self, bucket: str, prefix: str = "", *, endpoint: str | None = None, region: str | None = None
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._client, self._failures = _client(endpoint, region)

    def put(self, key: str, data: bytes) -> None:
        with self._told():
            self._client.put_object(Bucket=self._bucket, Key=self._name(key), Body=data)

    def get(self, key: str) -> bytes:
        with self._told(key):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._name(key))
            with contextlib.closing(answer["Body"]) as body:
                return bytes(body.read())

    def has(self, key: str) -> bool:
        try:
            with self._told(key):
                self._client.head_object(Bucket=self._bucket, Key=self._name(key))
        except BlobMissing:
            return False
        return True

    def delete(self, key: str) -> None:
        with self._told():
            self._client.delete_object(Bucket=self._bucket, Key=self._name(key))

    def list(self) -> Iterator[StoredBlob]:
        now = clock.utc_now()
        for found in self._objects():
            key = found["Key"].rpartition("/")[2]
            if len(key) == 64:
                yield StoredBlob(key, found["Size"], (now - found["LastModified"]).total_seconds())

    def check(self) -> None:
        with self._told():
            self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)

    def _objects(self) -> Iterator[dict[str, Any]]:
        lister = self._client.get_paginator("list_objects_v2")
        pages = iter(lister.paginate(Bucket=self._bucket, Prefix=self._prefix, PaginationConfig={"PageSize": PAGE}))
        while True:
            with self._told():
                page = next(pages, None)
            if page is None:
                return
            yield from page.get("Contents", ())

    def _name(self, key: str) -> str:
        return f"{self._prefix}{checked_key(key)[:2]}/{key}"

    @contextlib.contextmanager
    def _told(self, key: str | None = None) -> Iterator[None]:
        """Failures of S3, as ``StoreUnavailable``; an object that is not there as ``BlobMissing`` of ``key``."""
        try:
            yield
        except self._failures as failure:
            error = getattr(failure, "response", {}).get("Error", {})
            if key is not None and error.get("Code") in _MISSING:
                raise BlobMissing(key) from None
            raise StoreUnavailable(f"The bucket {self._bucket} failed: {failure}.") from failure


def _client(endpoint: str | None, region: str | None) -> tuple[Any, tuple[type[Exception], ...]]:
    try:
        import boto3  # noqa: PLC0415 an optional dependency
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError  # noqa: PLC0415
    except ImportError as failure:
        raise StoreUnavailable("Blobs in S3 need boto3: install nylorun[s3].") from failure
    settings = Config(
        connect_timeout=5,
        read_timeout=60,
        retries={"mode": "standard", "max_attempts": 4},
        max_pool_connections=32,
    )
    failures = (BotoCoreError, ClientError, HTTPClientError)
    try:
        session = boto3.session.Session()  # the default one is shared, and not made for threads
        return session.client("s3", endpoint_url=endpoint, region_name=region, config=settings), failures
    except (*failures, ValueError) as failure:
        raise StoreUnavailable(f"No S3 client can be made: {failure}.") from failure

"""From a URL to a store."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

from nylorun.blobs.filesystem import FileSystemStore
from nylorun.blobs.s3 import S3Store
from nylorun.blobs.store import Store

_OPTIONS = {"endpoint", "region"}


def store_for(url: str) -> Store:
    """The store at ``url``: ``file:<folder>`` or ``s3://<bucket>/<prefix>?endpoint=<url>&region=<name>``.

    A folder is made when it is missing; a bucket is not. S3 finds its credentials the way boto3 does (environment,
    files, the machine's role) and needs the extra ``nylorun[s3]``. Any other URL is a ``ValueError``.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return FileSystemStore(unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc:
        return S3Store(parts.netloc, unquote(parts.path).strip("/"), **_options(parts.query))
    raise ValueError(f"No blob store is at {url!r}: use file:<folder> or s3://<bucket>/<prefix>.")


def _options(query: str) -> dict[str, str]:
    given = parse_qs(query, strict_parsing=True) if query else {}
    if unknown := set(given) - _OPTIONS:
        raise ValueError(f"Unknown option of an s3 URL: {', '.join(sorted(unknown))}.")
    return {name: values[-1] for name, values in given.items()}

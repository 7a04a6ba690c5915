"""One stored file as raw content: whole or one range, for artifact routes and links alike."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import StreamingHttpResponse

from manifests.services import trees
from nylorun.blobs import Entry
from nylorun.http.ranges import Span, begun, raw_answer, wanted_span
from nylorun.http.view import ApiView
from nylorun.http.waiting import waiting

LONG = 1 << 20
"""What is longer leaves at its reader's pace and takes one of the places for waiting requests."""


def stored_file(view: ApiView, entry: Entry, *, name: str, content_type: str) -> StreamingHttpResponse:
    """The file, or the range of it that is asked for; ``If-Range`` with another ``ETag`` asks for the whole."""
    etag = f'"{entry.sha256.hex()}"'
    asked = view.header("Range") if view.header("If-Range") in (None, etag) else None
    span = wanted_span(asked, entry.size)
    wanted = span or Span(0, entry.size, entry.size)
    pieces = trees.chunks(entry, wanted.start, wanted.length)
    return raw_answer(
        paced(view, pieces, wanted.length),
        length=entry.size,
        span=span,
        name=name,
        content_type=content_type,
        etag=etag,
    )


def paced(view: ApiView, pieces: Iterator[bytes], length: int | None) -> Iterator[bytes]:
    """``pieces``, begun; a long content (``None``: who knows) holds a place among the waiting requests to its end.

    Nothing is read for ``HEAD``. Raises what refuses the first piece, and ``ServiceUnavailable`` without a free place.
    """
    if view.request.method == "HEAD":
        return iter(())
    return begun(pieces if length is not None and length <= LONG else _placed(pieces))


def _placed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    with waiting():
        yield from pieces

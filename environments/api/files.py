"""Files as raw bytes: read with ranges, listed, written whole, removed. Every request is an implicit Turn.

What the tools say as ``tool.*`` is said here as an HTTP status: a missing path is 404, a path that leads out 400.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from django.http.response import HttpResponseBase
from rest_framework.request import Request

from environments import tools
from environments.api.shapes import FileQuery
from environments.api.views import FileDeleted, FileWritten, ToolAnswer
from environments.commands import CallTool
from environments.compute.channel import EngineChannel
from environments.compute.contract import Answer
from environments.errors import EnvironmentUnavailable
from environments.services.read import read_environment
from environments.services.workplace import Workplace
from environments.tools.files import FILE_SECONDS, TRANSFER_SECONDS, workspace_of
from environments.tools.machines import pods_available
from environments.tools.streaming import Client, run_beside
from nylorun.http.openapi import describes
from nylorun.http.ranges import Span, begun, media_type_of, raw_answer, wanted_span
from nylorun.http.view import ApiView
from nylorun.http.waiting import release
from nylorun.http.words import WRITE
from nylorun.kernel.durations import size
from nylorun.kernel.errors import (
    ApiError,
    ByteLimitExceeded,
    InvalidRequest,
    NotFound,
    Refusal,
    RequestConflict,
    RequestRejected,
    ServiceUnavailable,
)
from nylorun.tenant.limits import file_bytes

_NO_FILE = ("tool.not_found",)
_NO_ROOM = ("tool.no_space", "tool.too_large")
_STORAGE = "5GiB"
"""Of a pod whose Recipe names none."""
_CONFLICTS = ("tool.not_empty", "tool.exists", "tool.permission")


class FilesRootView(ApiView):
    """The root of the workspace: only its list."""

    word = WRITE

    @describes(query=FileQuery, answers={200: ToolAnswer}, summary="List the workspace")
    def get(self, request: Request, id: str) -> HttpResponseBase:
        """The ``list`` output of ``/workspace``."""
        environment_id = self.environment_id()
        query = self.query(FileQuery)
        if not query.list:
            raise RequestRejected("This is a folder: add list=1 to read its entries.")
        return self.answer(_list(self, environment_id, ".", query.recursive))


class FilesView(ApiView):
    """One path below ``/workspace``."""

    word = WRITE

    @describes(query=FileQuery, answers={200: "application/octet-stream"}, summary="Read a file or list a folder")
    def get(self, request: Request, id: str, path: str) -> HttpResponseBase:
        """Raw bytes with one range, or the ``list`` output."""
        environment_id = self.environment_id()
        query = self.query(FileQuery)
        name = "/".join(self.segments("path"))
        if query.list:
            return self.answer(_list(self, environment_id, name, query.recursive))
        return _download(self, environment_id, name)

    @describes(query=FileQuery, answers={200: FileWritten, 201: FileWritten}, summary="Write a whole file")
    def put(self, request: Request, id: str, path: str) -> HttpResponseBase:
        """Made or replaced, or nothing written."""
        environment_id = self.environment_id()
        query = self.query(FileQuery)
        name = "/".join(self.segments("path"))
        limit = file_bytes()
        body = self.raw_body(limit, "fileBytes")
        args = {"path": name, "mode": query.mode or "0644", "createParents": query.parents, "maxBytes": limit}
        sent_to: list[Workplace] = []

        def send(channel: EngineChannel, place: Workplace, call_id: str) -> Answer:
            sent_to.append(place)
            return channel.call(
                "write",
                args,
                call_id=call_id,
                epoch=place.epoch,
                time_limit_s=TRANSFER_SECONDS,
                body=body.chunks(),
                **workspace_of(place),
            )

        answer = _serve(self, environment_id, "write", send)
        if answer.code in _NO_ROOM:
            raise _no_room(answer, sent_to[-1], limit)
        written = _completed(answer)
        return self.answer(written, status=201 if written["created"] else 200)

    @describes(query=FileQuery, answers={200: FileDeleted}, summary="Remove a file or a folder")
    def delete(self, request: Request, id: str, path: str) -> HttpResponseBase:
        """Removed; a missing one was not."""
        environment_id = self.environment_id()
        query = self.query(FileQuery)
        name = "/".join(self.segments("path"))
        args = {"path": name, "recursive": query.recursive}
        answer = _serve(self, environment_id, "remove", _sender("remove", args))
        if answer.code in _NO_FILE:
            return self.answer({"path": name, "deleted": False})
        _completed(answer)
        return self.answer({"path": name, "deleted": True})


def _list(view: ApiView, environment_id: str, path: str, recursive: bool) -> dict[str, Any]:
    answer = _serve(view, environment_id, "list", _sender("list", {"path": path, "recursive": recursive}))
    return _completed(answer)


def _download(view: ApiView, environment_id: str, path: str) -> HttpResponseBase:
    # Reading nothing tells what would be read: the size of the file a link leads to, not of the link.
    looked = _serve(view, environment_id, "read", _sender("read", {"path": path, "offset": 0, "limit": 0}))
    if looked.code == "tool.is_directory":
        raise RequestRejected("This is a folder: add list=1 to read its entries.")
    found = _completed(looked)
    length = int(found["size"])
    span = wanted_span(view.header("Range"), length)
    name = path.rsplit("/", 1)[-1]
    head = view.request.method == "HEAD"
    chunks = iter(()) if head else begun(_chunks(view, environment_id, path, span or Span(0, length, length)))
    response = raw_answer(chunks, length=length, span=span, name=name, content_type=media_type_of(name))
    modified = datetime.fromisoformat(str(found["mtime"]))
    response.headers["Last-Modified"] = format_datetime(modified, usegmt=True)
    return response


def _chunks(view: ApiView, environment_id: str, path: str, span: Span) -> Iterator[bytes]:
    """Exactly ``span``, or the answer breaks off: a file that shrank meanwhile never passes for a whole one."""
    client = Client(kill_on_leave=True)
    args = {"path": path, "offset": span.start, "limit": span.length}

    def send(channel: EngineChannel, place: Workplace, call_id: str) -> Answer:
        return channel.call(
            "read",
            args,
            call_id=call_id,
            epoch=place.epoch,
            time_limit_s=TRANSFER_SECONDS,
            on_data=lambda piece: client.give("data", piece),
            most_data=span.length,
            cancel=client.cancel,
            **workspace_of(place),
        )

    call = CallTool(environment_id, "read", "")
    owner, pods = view.caller.subject, pods_available()
    release()  # this thread only passes on what the call's own thread hands it
    run_beside(client, lambda: tools.serve(call, owner=owner, pods=pods, send=send))
    left = span.length
    try:
        while True:
            _, piece = client.pieces.get()
            if not isinstance(piece, bytes):
                break
            left -= len(piece)
            yield piece
        if isinstance(piece, ApiError):
            raise piece
        if isinstance(piece, Answer) and piece.kind == "failed":
            raise _refusal(piece)
        if left != 0:
            raise ServiceUnavailable(f"The file ended {left} bytes early: it was changed while it was read.")
    finally:
        client.leave()


def _sender(op: str, args: dict[str, Any]) -> tools.Send:
    def send(channel: EngineChannel, place: Workplace, call_id: str) -> Answer:
        return channel.call(
            op, args, call_id=call_id, epoch=place.epoch, time_limit_s=FILE_SECONDS, **workspace_of(place)
        )

    return send


def _serve(view: ApiView, environment_id: str, tool: str, send: tools.Send) -> Answer:
    call = CallTool(environment_id, tool, "")
    return tools.serve(call, owner=view.caller.subject, pods=pods_available(), send=send)


def _completed(answer: Answer) -> dict[str, Any]:
    """The output, or the refusal that says the same as the tool's failure."""
    if answer.kind == "completed":
        return dict(answer.output or {})
    raise _refusal(answer)


def _no_room(answer: Answer, place: Workplace, file_most: int) -> ByteLimitExceeded:
    """The refusal for content that does not fit, with the limit it met: the disk's, or the Tenant's on one file."""
    disk = _disk_bytes(place)
    of_file = answer.code == "tool.too_large" and file_most <= disk
    details = {"limit": "fileBytes", "limitBytes": file_most} if of_file else {"limit": "disk", "limitBytes": disk}
    return ByteLimitExceeded(answer.message or "The file does not fit.", details=details)


def _disk_bytes(place: Workplace) -> int:
    """What the workspace may hold: of a pod its storage, whether this host can hold it to that or not."""
    if place.kind == "virtual":
        return place.disk_bytes
    view, _ = read_environment(place.environment_id)
    return size(view["manifest"].get("storage", _STORAGE))


def _refusal(answer: Answer) -> Refusal | ServiceUnavailable:
    code, message = str(answer.code), answer.message or "The call failed."
    if code in _NO_FILE:
        return NotFound()
    if code in _CONFLICTS:
        return RequestConflict(message)
    if code == "tool.path_escape":
        return InvalidRequest([{"path": "{path}", "message": message}])
    if code == "tool.interrupted":
        return EnvironmentUnavailable(message, retry_after=5)
    return RequestRejected(message)

"""Tool calls over HTTP: one call, its answer, or a stream of what a command prints."""

from __future__ import annotations

import base64
import binascii
from datetime import timedelta
from typing import Any

from django.http.response import HttpResponseBase
from rest_framework.request import Request

from environments import tools
from environments.api.shapes import TOOLS, Bash, Read, ToolInput, ToolQuery, Write
from environments.api.views import ToolAnswer
from environments.commands import CallTool
from environments.compute.channel import EngineChannel, read_file, run_bash
from environments.compute.contract import Answer
from environments.services.workplace import Workplace
from environments.tools.files import FILE_SECONDS, workspace_of
from environments.tools.machines import pods_available
from environments.tools.streaming import Client, frames, run_beside, sse, wait_for_start
from nylorun.http.body import BODY_MAX
from nylorun.http.openapi import describes
from nylorun.http.prefer import idempotency_key
from nylorun.http.view import ApiView
from nylorun.http.waiting import release
from nylorun.http.words import WRITE
from nylorun.kernel.canonical import canonical_hash
from nylorun.kernel.errors import InvalidRequest, NotFound, RequestRejected

WRITE_BODY_MAX = 16 << 20


class ToolView(ApiView):
    """``POST …/tools/{tool}``."""

    word = WRITE

    @describes(query=ToolQuery, answers={200: ToolAnswer}, summary="Call a tool in the sandbox")
    def post(self, request: Request, id: str, tool: str) -> HttpResponseBase:
        """Serve the call; how the tool ended stands in the answer."""
        environment_id = self.environment_id()
        name = self.segment("tool")
        model = TOOLS.get(name)
        if model is None:
            raise NotFound
        query = self.query(ToolQuery)
        # Content and standard input may hold any character, escaped in JSON; their own bounds are their shapes'.
        body = self.body(model, limit=WRITE_BODY_MAX if model in (Bash, Write) else BODY_MAX, nul=True)
        self._refuse_what_turns_have(query, body)
        call = CallTool(environment_id, name, canonical_hash({"tool": name, "input": body.args()}))
        if isinstance(body, Bash) and "text/event-stream" in (self.header("Accept") or ""):
            return self._stream(call, body, Client(kill_on_leave=query.on_disconnect == "kill"))
        takes = self.caller.actor if isinstance(body, Bash) else None
        answer = tools.serve(
            call,
            owner=self.caller.subject,
            pods=pods_available(),
            send=sender(body),
            takes=takes,
            lasts=_time_limit(body),
        )
        return self.answer(wire(answer))

    def _stream(self, call: CallTool, body: Bash, client: Client) -> HttpResponseBase:
        owner, takes, pods = self.caller.subject, self.caller.actor, pods_available()
        send, lasts = bash_sender(body, client), _time_limit(body)
        release()  # this thread only passes on what the call's own thread hands it
        run_beside(client, lambda: tools.serve(call, owner=owner, pods=pods, send=send, takes=takes, lasts=lasts))
        wait_for_start(client)
        return sse(frames(client, wire))

    def _refuse_what_turns_have(self, query: ToolQuery, body: ToolInput) -> None:
        if query.hold:
            raise RequestRejected("hold belongs to the Turns of a Session: send the call in a Turn, or without hold.")
        if idempotency_key(self.header("Idempotency-Key"), body.idempotency_key) is not None:
            raise RequestRejected(
                "Idempotency keys of Tool calls are not served by this version: send the call without a key."
            )


def _time_limit(body: ToolInput) -> timedelta | None:
    """That of a command; other tools have none of their own."""
    return timedelta(milliseconds=body.timeout_ms) if isinstance(body, Bash) else None


def wire(answer: Answer) -> dict[str, Any]:
    """An answer as callers see it."""
    if answer.kind == "completed":
        return {"kind": "completed", "output": answer.output}
    return {"kind": "failed", "code": answer.code, "message": answer.message}


def sender(body: ToolInput) -> tools.Send:
    """What is sent to the Engine for this input."""
    if isinstance(body, Bash):
        return bash_sender(body)
    if isinstance(body, Read):
        return _read_sender(body)
    if isinstance(body, Write):
        return _write_sender(body)
    return _plain_sender(tool_name(body), body.args())


def bash_sender(body: Bash, client: Client | None = None) -> tools.Send:
    """A command: its answer at the end, and for a client of a stream what it prints as it comes."""

    def send(channel: EngineChannel, place: Workplace, call_id: str) -> Answer:
        if client is not None:
            client.give("open", "")
        return run_bash(
            channel,
            body.command,
            cwd=body.cwd,
            env=place.variables.under(body.env),
            stdin=body.stdin.encode(),
            timeout_ms=body.timeout_ms,
            on_stdout=None if client is None else lambda text: client.give("stdout", text),
            on_stderr=None if client is None else lambda text: client.give("stderr", text),
            cancel=None if client is None else client.cancel,
            call_id=call_id,
            epoch=place.epoch,
            egress=place.egress,
            **workspace_of(place),
        )

    return send


def tool_name(body: ToolInput) -> str:
    """The tool of an input."""
    return next(name for name, model in TOOLS.items() if type(body) is model)


def _read_sender(body: Read) -> tools.Send:
    def send(channel: EngineChannel, place: Workplace, call_id: str) -> Answer:
        return read_file(
            channel,
            body.path,
            offset=body.offset,
            limit=body.limit,
            call_id=call_id,
            epoch=place.epoch,
            time_limit_s=FILE_SECONDS,
            **workspace_of(place),
        )

    return send


def _write_sender(body: Write) -> tools.Send:
    content = _content(body)
    args = {"path": body.path, "mode": body.mode, "createParents": body.create_parents, "maxBytes": None}
    return _plain_sender("write", args, content)


def _plain_sender(op: str, args: dict[str, Any], content: bytes | None = None) -> tools.Send:
    def send(channel: EngineChannel, place: Workplace, call_id: str) -> Answer:
        return channel.call(
            op,
            args,
            call_id=call_id,
            epoch=place.epoch,
            time_limit_s=FILE_SECONDS,
            body=content,
            **workspace_of(place),
        )

    return send


def _content(body: Write) -> bytes:
    if isinstance(body.content, str):
        return body.content.encode()
    try:
        return base64.b64decode(str(body.content_base64), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest([{"path": "/contentBase64", "message": "must be base64"}]) from None

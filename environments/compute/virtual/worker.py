"""One process of one workspace: serves one call after the other, shut in with that workspace's folder.

What it hears from the server, and says to it, is in ``control``; the client it answers itself.

A reader may rely on:
  * what this process does wrong harms the call it serves; it reaches no other workspace (see ``cage``);
  * it ends when the server does, when it holds much more memory than at its start, and when something in it cannot be
    stopped; running out of memory ends it by SIGABRT.
"""

from __future__ import annotations

import hashlib
import os
import resource
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from environments.compute.engine import jsonc, wire
from environments.compute.engine.command import Request
from environments.compute.engine.files import Args, prepare
from environments.compute.engine.paths import normalise
from environments.compute.engine.tree import Tree
from environments.compute.engine.wire import Cancelled, ClientGone, Header, ProtocolError, ToolError
from environments.compute.virtual import cage, control, files, programs
from environments.compute.virtual.folders import Folders
from environments.compute.virtual.ledger import Ledger
from environments.compute.virtual.meter import Meter
from environments.compute.virtual.outside import Outside
from environments.compute.virtual.shell import HOME, Command, Shell
from environments.compute.virtual.stages import Stages, note_whole
from environments.compute.virtual.watch import Watch, ending

STDIN_MAX = 1 << 20
DISK_DEFAULT = 64 << 30
LINGER_SECONDS = 2.0
GROWN_KIB = 64 * 1024
BROKEN = 70
REHEARSAL_SECONDS = 5.0
REHEARSAL = b'{"v":1,"op":"bash","call":"-","epoch":0,"args":{"command":"echo","timeoutMs":1000}}'


def load() -> None:
    """Use everything once, so that what is forked from here has all of it loaded."""
    hashlib.sha256(b"")  # the file tools load it when they first write
    prepare("tree.list", {})  # loads what disks are copied with
    programs.load()
    rehearse()


def rehearse() -> None:
    """Run a command for nobody: the pages it touches are then this process's own, and the first real one is quick.

    Raises ``RuntimeError`` when a thread is left, because a thread made before the cage would stand outside of it.
    """
    header = wire.parse_header(REHEARSAL)
    request, shell = Request(header.args), Shell()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = Command(header.call, request, shell, shell.script(request, HOME, b""), ours)
        command.last_frames(command.execute())
    del command, shell
    until = time.monotonic() + REHEARSAL_SECONDS
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > until:
            raise RuntimeError("a thread is left from the rehearsal")
        select.select([], [], [], 0.001)


def main(line: socket.socket, folders: Folders) -> None:
    """Wait for a workspace, shut in with it, serve until the server is done with us. Leaves no thread before."""
    rehearse()
    shell = Shell()
    message, handles, _, _ = socket.recv_fds(line, control.SHORT, 1)
    if not message:
        return
    order = jsonc.loads(message[1:])
    whole = _no_note
    if order["stage"] is None:
        home, tree = folders.open(order["workspace"])
    else:
        home, tree, note = Stages(folders).open(order["workspace"], order["stage"])
        whole = partial(note_whole, note, order["stage"])
    file_tools = Tree(tree)
    caged = cage.enter(home, tree, order["memoryMib"])
    os.close(home)
    meter = Meter(Ledger(handles[0], order["slot"], tree), tree, caged.io)
    os.close(handles[0])
    shell.mount(caged.path)
    worker = Worker(line, file_tools, shell, meter, whole)
    while worker.serve_one():
        pass


def _no_note() -> None:
    """A workspace is no stage: nobody asks whether it is whole."""


class Worker:
    """The loop over calls, one at a time."""

    def __init__(self, line: socket.socket, tree: Tree, shell: Shell, meter: Meter, whole: Callable[[], None]) -> None:
        self._whole = whole
        self._line = line
        self._tree = tree
        self._shell = shell
        self._meter = meter
        self._watch = Watch(line, meter)
        self._used_shell = False
        self._cut = False  # the client may still be sending when it is answered
        self._size = _resident_kib()

    def serve_one(self) -> bool:
        """Wait for a call and serve it; ``False`` when this process shall end."""
        message, handles, _, _ = socket.recv_fds(self._line, 1 + control.INLINE, 3)
        if not message:
            return False
        word = message[:1]
        if word not in (control.CALL, control.CALL_OUT) or not handles:  # a cancel that came after its call's end
            return True
        with ExitStack() as held:
            client = held.enter_context(socket.socket(fileno=handles.pop(0)))
            line = held.enter_context(socket.socket(fileno=handles.pop(0))) if word == control.CALL_OUT else None
            self._serve(client, _header_bytes(message, handles), line)
        again = _resident_kib() - self._size < GROWN_KIB
        self._line.send(control.AGAIN if again else control.ENDED)
        if again and self._used_shell:
            self._shell.clear()
            self._used_shell = False
        return again

    def _serve(self, client: socket.socket, payload: bytes, line: socket.socket | None) -> None:
        try:
            answer = self._answer(client, payload, line)
            client.sendall(answer)
            if self._cut:
                _linger(client)
        except (ClientGone, ProtocolError, OSError):  # nobody is left to answer
            return

    def _answer(self, client: socket.socket, payload: bytes, line: socket.socket | None) -> bytes:
        """Do the call; gives the frames that end it. ``line`` is where connections are asked for, if it has any."""
        self._cut = False
        try:
            header = wire.parse_header(payload)
            limit = Args(header.limits).optional_number("diskBytes")
            limit = DISK_DEFAULT if limit is None else limit
            if header.op == "bash":
                return self._bash(header, client, limit, line)
            body = wire.read_body(client)
            value = wire.completed(files.run(header, self._tree, body, self._meter, limit, _sender(client)))
            if header.op == "tree.write":
                self._whole()
        except ToolError as failure:
            self._cut = True
            value = wire.failed(failure.code, failure.message)
        except wire.Refused as refusal:
            value = wire.failed("tool.failed", refusal.message)
        except Cancelled:
            value = wire.failed("tool.cancelled", "The call was cancelled.")
        return wire.encode_json(wire.RESULT, value)

    def _bash(self, header: Header, client: socket.socket, limit: int, line: socket.socket | None) -> bytes:
        request = Request(header.args)
        cwd, stdin = self._cwd(request.folder), _stdin(client)
        self._used_shell = True
        command = Command(header.call, request, self._shell, self._shell.script(request, cwd, stdin), client)
        way_out = None if line is None else Outside(line, Args(header.egress).text("trusted", most=wire.MAX_PAYLOAD))
        self._shell.programs.begin(self._tree, way_out)
        self._meter.begin(limit)
        self._watch.begin(command)
        try:
            result = command.execute()
        finally:
            self._watch.end()
            self._meter.end()
            self._shell.programs.end()
        return command.last_frames(result) if command.reason is None else ending(command.reason)

    def _cwd(self, path: str) -> str:
        os.close(self._tree.folder(path))
        return f"{HOME}/{normalise(path)}".rstrip("/")


def _header_bytes(message: bytes, handles: list[int]) -> bytes:
    """``handles`` are those beside the connections: none, or that of a long header."""
    if not handles:
        return message[1:]
    with open(handles[0], "rb") as long_header:
        return long_header.read(wire.MAX_PAYLOAD)


def _sender(client: socket.socket) -> Callable[[bytes | memoryview], None]:
    return lambda data: wire.write_frame(client, wire.DATA, data)


def _linger(client: socket.socket) -> None:
    """Take what the client still sends: closing on unread bytes would cut off the answer it has not read yet."""
    client.shutdown(socket.SHUT_WR)
    client.settimeout(LINGER_SECONDS)
    while client.recv(wire.CHUNK):
        pass


def _stdin(client: socket.socket) -> bytes:
    data = bytearray()
    for part in wire.read_body(client):
        data += part
        if len(data) > STDIN_MAX:
            raise ToolError("tool.too_large", "Standard input is larger than 1 MiB.")
    return bytes(data)


def _resident_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

"""The cage itself: what a process cannot do whose interpreter was taken over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from environments.compute.virtual import landlock, seccomp
from tests.compute.virtual.support import REPOSITORY

ATTEMPTS = {
    "read the host": "os.open('/etc/passwd', os.O_RDONLY)",
    "list the root": "os.listdir('/')",
    "read another workspace": "os.open(f'{root}/other/workspace/secret', os.O_RDONLY)",
    "read another workspace by dots": "os.open('../../other/workspace/secret', os.O_RDONLY, dir_fd=workspace)",
    "follow a link out": "os.open('link', os.O_RDONLY, dir_fd=workspace)",
    "write beside the workspace": "os.open('../new', os.O_WRONLY | os.O_CREAT, dir_fd=workspace)",
    "look at processes": "os.listdir('/proc')",
    "open a socket": "socket.socket(socket.AF_INET)",
    "open a local socket": "socket.socket(socket.AF_UNIX)",
    "make a process": "os.fork()",
    "run a program": "os.execv('/bin/true', ['true'])",
    "signal the parent": "os.kill(os.getppid(), 0)",
    "limit the parent": "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1))",
    "raise its own memory": "resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))",
    "take all memory": "bytearray(1 << 30)",
    "become root": "os.setuid(0)",
    "leave the root folder": "os.chroot('.')",
    "make a device": "os.mknod('device', 0o60600, os.makedev(8, 0), dir_fd=workspace)",
    "make a pipe others could block on": "os.mknod('fifo', 0o10600, 0, dir_fd=workspace)",
    "trace the parent": "check(libc.ptrace(16, os.getppid(), 0, 0))",
    "read the parent's memory": "check(libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0))",
    "get a new namespace": "check(libc.unshare(0x10000000))",
    "mount": "check(libc.mount(b'none', b'/workspace', b'tmpfs', 0, None))",
    "write a file beyond memory limits of the kernel": "check(libc.syscall(425, 8, 0))",
}
ALLOWED = {
    "write in the workspace": "os.close(os.open('file', os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=workspace))",
    "make folders and links": "os.mkdir('d', dir_fd=workspace); os.symlink('d', 'l', dir_fd=workspace)",
    "rename and remove": "os.mkdir('e', dir_fd=workspace); os.rename('e', 'd/e', **here)",
    "start a thread": "threading.Thread(target=int).start()",
}
PROGRAM = """
import ctypes, json, os, resource, socket, sys, threading
from environments.compute.virtual import cage
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0: raise OSError(ctypes.get_errno(), "refused")
root, attempts = sys.argv[1], json.loads(sys.argv[2])
home = os.open(f"{root}/mine", os.O_RDONLY)
workspace = os.open(f"{root}/mine/workspace", os.O_RDONLY)
here = {"src_dir_fd": workspace, "dst_dir_fd": workspace}
cage.become(65533, keep_chroot=sys.argv[3] == "rooted")
caged = cage.enter(home, workspace, 64)
os.close(home)
outcome = {"rooted": caged.rooted, "landlock": caged.landlock, "filtered": caged.filtered}
for name, attempt in attempts.items():
    try:
        exec(attempt)
    except (OSError, MemoryError, ValueError) as error:
        outcome[name] = type(error).__name__
    else:
        outcome[name] = "done"
print(json.dumps(outcome))
"""


MODES = ["rooted", "in place"] if os.geteuid() == 0 else ["in place"]


@pytest.fixture(params=MODES)
def outcome(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    """What each attempt came to, in a process that may and in one that may not ``chroot``."""
    for name in ("mine", "other"):
        (tmp_path / name / "workspace").mkdir(parents=True)
    (tmp_path / "other/workspace/secret").write_text("secret")
    (tmp_path / "mine/workspace/link").symlink_to("/etc/passwd")
    if os.geteuid() == 0:
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o755)
        for path in (*tmp_path.rglob("*"),):
            os.chown(path, 65533, 65533, follow_symlinks=False)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), json.dumps(ATTEMPTS | ALLOWED), request.param],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    assert found["rooted"] is (request.param == "rooted")
    return found


def test_a_process_taken_over_reaches_only_its_workspace(outcome: dict[str, object]) -> None:
    """E-256: isolation does not rest on the interpreter."""
    assert outcome["landlock"] == landlock.version()
    assert outcome["filtered"] is True
    assert {name: outcome[name] for name in ATTEMPTS if outcome[name] == "done"} == {}
    assert {name: outcome[name] for name in ALLOWED if outcome[name] != "done"} == {}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_call_filter_is_a_program_the_kernel_can_read(machine: str) -> None:
    program = seccomp.program(1, machine)
    assert program is not None
    length = len(program) // 8
    assert len(program) % 8 == 0
    for index in range(length):
        code, if_true, if_false = (
            int.from_bytes(program[index * 8 : index * 8 + 2], "little"),
            *program[index * 8 + 2 : index * 8 + 4],
        )
        if code & 7 == 5:  # a jump must land inside
            assert index + 1 + max(if_true, if_false) < length
    assert seccomp.program(1, "s390x") is None

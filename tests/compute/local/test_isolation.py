"""Attempts to break out of a pod, or to take more of the host than it is given. Each must fail."""

from __future__ import annotations

import os
import platform
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from environments.compute.local import host
from environments.compute.local.driver import LocalDriver
from environments.compute.local.places import Place
from tests.compute.local.helpers import (
    NAME,
    OTHER,
    SHARED,
    Client,
    ControlPlane,
    eventually,
    joined,
    our_groups,
    own_pods,
    seen_from_outside,
    spec,
)

MIB = 1 << 20
as_root = os.geteuid() == 0


def number_in(path: Path) -> int:
    return int(path.read_text())


def python(pod: Client, code: str, **more: object) -> str:
    """What a Python program inside prints."""
    reply = pod.bash("exec python3 -", code.encode(), **more)
    return (reply.out + reply.err).decode().strip()


def system_call(pod: Client, x86_64: int, aarch64: int, *arguments: int) -> str:
    """The result of a raw system call made inside: ``ok`` or the name of the error."""
    number = x86_64 if platform.machine() == "x86_64" else aarch64
    code = (
        "import ctypes, errno\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"result = libc.syscall(*map(ctypes.c_long, {(number, *arguments)!r}))\n"
        "print('ok' if result >= 0 else errno.errorcode[ctypes.get_errno()])\n"
    )
    return python(pod, code)


# ------------------------------------------------------------------------------------------------ files of the host


def test_files_of_the_host_are_not_there(pod: Client, shared: tuple[LocalDriver, Path]) -> None:
    """E-255: of the host only /usr and chosen files of /etc are seen; no data folder, no home, no other root."""
    for path in (
        "/etc/shadow",
        "/etc/ssh",
        "/etc/resolv.conf",
        "/home",
        "/proc/1/root/etc",
        str(shared[1]),
        str(host.CODE_ROOT),
    ):
        assert pod.bash(f"ls -d {path}").output["exitCode"] != 0, path
    assert set(pod.sh("ls -A /").split()) <= {
        "bin", "dev", "etc", "harness", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "run", "sbin", "tmp",
        "usr", "var", "workspace",
    }  # fmt: skip


def test_only_the_volume_and_sized_memory_can_be_written(pod: Client) -> None:
    for path in ("/x", "/dev/x", "/etc/x", "/usr/x", "/run/x", "/run/nylorun/x", "/var/x", "/proc/sys/kernel/hostname"):
        assert pod.bash(f"echo x > {path}").output["exitCode"] != 0, path
    assert pod.bash("echo x >> /run/nylorun/environments/compute/engine/pod.py").output["exitCode"] != 0
    for path in ("/workspace/x", "/harness/x", "/tmp/x", "/dev/shm/x", "/var/tmp/x"):
        pod.sh(f"echo x > {path} && rm {path}")


def test_memory_folders_have_a_size(pod: Client) -> None:
    """Filling /tmp or /dev/shm ends in a full folder, not in a full host."""
    for folder, most in (("/tmp", 128 * MIB), ("/dev/shm", 32 * MIB)):
        size = int(pod.sh(f"df -B1 --output=size {folder} | tail -1"))
        assert size == most
    written = pod.bash("head -c 80000000 /dev/zero > /dev/shm/fill; stat -c %s /dev/shm/fill; rm /dev/shm/fill")
    assert int(written.text) == 32 * MIB


def test_mounts_are_nosuid_and_nodev(pod: Client) -> None:
    for line in pod.sh("cat /proc/self/mounts").splitlines():
        _, target, kind, options, *_ = line.split()
        flags = set(options.split(","))
        assert "nosuid" in flags, line
        assert "nodev" in flags or kind in ("devtmpfs", "devpts"), line
        if target in ("/", "/dev", "/usr") or target.startswith("/etc/"):
            assert "ro" in flags, line


def test_no_device_but_the_harmless_ones(pod: Client) -> None:
    names = set(pod.sh("find /dev -type c -o -type b").split())
    harmless = {f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero", "pts/ptmx")}
    assert names <= harmless
    assert pod.bash("mknod /workspace/sda b 8 0").output["exitCode"] != 0
    assert pod.bash("cat /dev/kmsg /dev/vda /dev/mem").output["exitCode"] != 0


def test_a_set_id_file_gives_nothing(pod: Client) -> None:
    """A set-user-id copy of `id` still runs as the sandbox user, without capabilities."""
    assert pod.sh("cp /usr/bin/id . && chmod 6755 id && ./id -u") == "1000"
    assert pod.bash("su root -c id < /dev/null").output["exitCode"] != 0


def test_files_belong_to_an_outside_user_of_the_volumes_own(pod: Client, shared: tuple[LocalDriver, Path]) -> None:
    pod.sh("touch mine")
    workspace, bearer = seen_from_outside(shared[1], SHARED), Place(shared[1], SHARED).bearer
    assert (workspace / "mine").stat().st_uid == workspace.stat().st_uid == bearer.stat().st_uid
    assert workspace.stat().st_uid != 0
    assert workspace.stat().st_mode & 0o777 == 0o700
    assert (shared[1] / SHARED).stat().st_mode & 0o077 == 0


def test_links_out_of_the_workspace_lead_the_file_tools_nowhere(pod: Client, shared: tuple[LocalDriver, Path]) -> None:
    """E-255: a link to a host path is `tool.path_escape`, for reading and for writing, at the end and on the way."""
    pod.sh(
        f"ln -sfn /etc/passwd l1; ln -sfn / l2; ln -sfn {shared[1]} l3; ln -sfn ../../../../etc l4; ln -sfn /proc/1 l5"
    )
    for path in ("l1", "l2/etc/passwd", "l3", "l4/passwd", "l5/environ"):
        assert pod.call("read", {"path": path}).code == "tool.path_escape"
        assert pod.call("write", {"path": path}, b"x").code == "tool.path_escape"
    assert "root:x:0:0" in pod.sh("cat l1")  # which is the sandbox's own


def test_a_swapped_folder_never_leads_the_file_tools_out(pod: Client) -> None:
    """A command that exchanges a folder for a link while a tool walks: the tool finds inside or nothing."""
    pod.sh("mkdir -p race real && echo inside > real/passwd && rm -rf race")
    swapping = (
        "while [ ! -e stop ]; do ln -sfn /etc race; rm -f race; mkdir race; echo inside > race/passwd; rm -r race; done"
    )
    thread = threading.Thread(target=pod.bash, args=(swapping,))
    thread.start()
    try:
        seen = {bytes(pod.call("read", {"path": "race/passwd"}).data) for _ in range(300)}
    finally:
        pod.sh("touch stop")
        thread.join(20)
        pod.sh("rm -f stop")
    assert seen <= {b"inside\n", b""}


# ------------------------------------------------------------------------------------------------ processes


def test_processes_of_the_host_are_neither_seen_nor_reached(pod: Client) -> None:
    assert str(os.getpid()) not in pod.sh("ls /proc").split()
    commands = pod.sh("ps -eo args").splitlines()
    assert not [line for line in commands if "pytest" in line or "supervisor" in line]
    assert pod.bash(f"kill -9 {os.getpid()}").output["exitCode"] != 0


@pytest.mark.parametrize("name", ["INT", "TERM", "KILL", "STOP", "SEGV", "HUP", "USR1", "CHLD", "PIPE", "ABRT"])
def test_signals_do_not_reach_the_engine(pod: Client, name: str) -> None:
    pod.bash(f"kill -{name} 1")
    assert pod.sh("echo alive") == "alive"


def test_the_engine_cannot_be_read_or_traced_by_commands(pod: Client) -> None:
    """The memory, environment and handles of PID 1 are closed to the user it shares with commands."""
    for path in ("mem", "environ", "maps", "fd/0", "fd/1"):
        assert pod.bash(f"exec 5< /proc/1/{path}").output["exitCode"] != 0, path
    for path in ("fd/", "root/", "cwd/"):
        assert pod.bash(f"ls /proc/1/{path}").output["exitCode"] != 0, path
    assert system_call(pod, 101, 117, 16, 1, 0, 0) == "EPERM"  # ptrace(PTRACE_ATTACH, 1)
    assert system_call(pod, 310, 270, 1, 0, 0, 0, 0, 0) == "EPERM"  # process_vm_readv(1)


def test_commands_inherit_no_handle(pod: Client) -> None:
    assert pod.sh("ls /proc/self/fd").split() in (["0", "1", "2", "3"], ["0", "1", "2", "255", "3"])


def test_a_canary_of_the_starters_environment_is_nowhere(
    plane: ControlPlane, driver: LocalDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pain 5: what stands in the control plane's environment, and the join token, is not inside."""
    monkeypatch.setenv("NYLORUN_CANARY", "canary-7f3a")
    plane.token = "canary-token-7f3a"
    driver.apply(spec(plane.url, join_token="canary-token-7f3a"))
    pod = joined(driver, plane)
    found = pod.bash(
        "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; "
        "grep -rsl canar[y] / --exclude-dir=proc --exclude-dir=usr --exclude-dir=sys --exclude-dir=root; true"
    )
    assert b"canary" not in found.out


# ------------------------------------------------------------------------------------------------ kernel and network


def test_no_capability_no_new_privileges_and_a_filter(pod: Client) -> None:
    status = dict(re.findall(r"(\w+):\s*(\S+)", pod.sh("cat /proc/self/status")))
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize(
    ("x86_64", "aarch64", "arguments", "answer"),
    [
        (250, 219, (0, -3, 0), "EPERM"),
        (248, 217, (0, 0, 0, 0, 0), "EPERM"),
        (321, 280, (0, 0, 0), "EPERM"),
        (272, 97, (0x10000000,), "EPERM"),
        (56, 220, (0x10000000 | 17, 0, 0, 0, 0), "EPERM"),
        (435, 435, (0, 0), "ENOSYS"),
        (165, 40, (0, 0, 0, 0, 0), "EPERM"),
        (425, 425, (1, 0), "EPERM"),
        (323, 282, (0,), "EPERM"),
        (298, 241, (0, 0, 0, 0, 0), "EPERM"),
        (304, 265, (0, 0, 0), "EPERM"),
        (246, 104, (0, 0, 0, 0), "EPERM"),
        (16, 29, (0, 0x5412, 0), "EPERM"),
        (41, 198, (40, 1, 0), "EAFNOSUPPORT"),
        (41, 198, (38, 5, 0), "EAFNOSUPPORT"),
        (41, 198, (17, 3, 0), "EAFNOSUPPORT"),
        (41, 198, (16, 3, 12), "EAFNOSUPPORT"),
        (41, 198, (16, 3, 0), "ok"),
    ],
    ids=[
        "keyctl", "add_key", "bpf", "unshare", "clone", "clone3", "mount", "io_uring", "userfaultfd", "perf",
        "open_by_handle_at", "kexec", "TIOCSTI", "vsock", "alg", "packet", "netfilter", "route netlink",
    ],
)  # fmt: skip
def test_system_calls_that_lead_out_are_refused(
    pod: Client, x86_64: int, aarch64: int, arguments: tuple[int, ...], answer: str
) -> None:
    assert system_call(pod, x86_64, aarch64, *arguments) == answer


def test_no_namespace_can_be_made_inside(pod: Client) -> None:
    assert pod.bash("unshare -U true").output["exitCode"] != 0
    assert pod.bash("unshare -Urm true").output["exitCode"] != 0
    assert (
        pod.sh("cat /proc/sys/user/max_user_namespaces") in ("0", "1") or pod.bash("unshare -U true").output["exitCode"]
    )


def test_there_is_no_network_but_its_own_loopback(pod: Client) -> None:
    """E-255: no device, no address, no socket of the host, abstract ones included."""
    assert pod.sh("ls /sys/class/net 2>/dev/null || awk -F: 'NR>2{print $1}' /proc/net/dev").split() == ["lo"]
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as abstract:
        server.bind(("127.0.0.1", 0))
        server.listen()
        abstract.bind(f"\0nylorun-test-{os.getpid()}")
        abstract.listen()
        code = (
            "import socket\n"
            f"for family, address in ((socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]})),\n"
            "    (socket.AF_INET, ('8.8.8.8', 53)), (socket.AF_INET, ('169.254.169.254', 80)),\n"
            f"    (socket.AF_UNIX, '\\0nylorun-test-{os.getpid()}')):\n"
            "    try:\n"
            "        socket.socket(family).connect(address)\n"
            "        print('reached')\n"
            "    except OSError as error:\n"
            "        print(error.errno)\n"
        )
        assert python(pod, code).split() == ["111", "101", "101", "111"]


def test_the_other_pods_volume_and_processes_are_out_of_reach(
    pod: Client, shared: tuple[LocalDriver, Path], plane: ControlPlane
) -> None:
    """Two pods share no user, no file, no process and no loopback."""
    driver, root = shared
    with own_pods(driver, OTHER):
        driver.apply(spec(plane.url, name=OTHER))
        other = joined(driver, plane, OTHER)
        other.sh("echo secret-of-other > mine; (exec -a other-process sleep 600) >/dev/null 2>&1 &")
        assert pod.bash("grep -rs secret-of-othe[r] /workspace /harness /tmp").text == ""
        assert "other-process" not in pod.sh("ps -eo args")
        if as_root:
            assert len({Place(root, name).bearer.stat().st_uid for name in (SHARED, OTHER)}) == 2
        assert other.sh("hostname") != pod.sh("hostname")


# ------------------------------------------------------------------------------------------------ amounts


@pytest.fixture
def small(driver: LocalDriver, plane: ControlPlane) -> Client:
    """A pod of 96 MiB, for tests that use it up."""
    driver.apply(spec(plane.url, memory_mib=96))
    return joined(driver, plane)


def test_memory_is_held_and_the_engine_survives(small: Client, driver: LocalDriver) -> None:
    """E-255: eight processes of 60 MB in a pod of 96 MiB are ended, not the Engine, nor the host."""
    if "memory" in driver.status(NAME).unenforced:
        assert "MemoryError" in python(small, "bytearray(300 << 20)")
        return
    hog = "python3 -c 'import time; x = b\"x\" * 60_000_000; time.sleep(20)' & "
    reply = small.bash(hog * 8 + "wait -n; echo ended", timeoutMs=15_000)
    assert b"ended" in reply.out
    assert small.sh("echo alive") == "alive"
    small.bash("pkill python3")
    limit = [
        path for path in our_groups() if (path / "memory.limit_in_bytes").exists() or (path / "memory.max").exists()
    ]
    assert limit


def test_memory_folders_count_as_memory(small: Client) -> None:
    """Full ones count, and leave enough to start the command that empties them."""
    small.bash("head -c 90000000 /dev/zero > /tmp/a; head -c 90000000 /dev/zero > /dev/shm/b")
    used = [int(path.read_text()) for group in our_groups() if (path := group / "memory.usage_in_bytes").exists()]
    assert all(usage > 50 * MIB for usage in used)
    assert small.sh("rm /tmp/a /dev/shm/b; echo alive") == "alive"


def test_a_fork_bomb_is_held_and_the_pod_can_be_ended(driver: LocalDriver, plane: ControlPlane) -> None:
    """E-255: the number of processes has a limit; within it the Engine still answers pings and ends the pod."""
    driver.apply(spec(plane.url, memory_mib=1024))
    pod = joined(driver, plane)
    bomb = "b() { b | b & }; b; sleep 30"
    with pod.open("bash", {"command": bomb, "timeoutMs": 30_000, "stream": False}):
        groups = [path for path in our_groups() if (path / "pids.current").exists()]
        for group in groups:
            assert number_in(group / "pids.max") == 512
            eventually(lambda: number_in(groups[0] / "pids.current") > 100)
            assert number_in(group / "pids.current") <= 512
        assert pod.call("ping", {}).output["engine"] == "pod"
        started = time.monotonic()
        driver.delete(NAME)
    assert time.monotonic() - started < 10
    assert our_groups() == []


def test_cpu_is_held(small: Client, driver: LocalDriver) -> None:
    """A pod of one core that is busy in two processes gets one core's time."""
    if "cpus" in driver.status(NAME).unenforced:
        return
    spin = "timeout 1 sh -c 'while :; do :; done' & "
    report = small.bash(f"time -p ({spin * 2} wait)").err.decode()
    used = sum(float(value) for value in re.findall(r"(?:user|sys) ([\d.]+)", report))
    assert 0.3 < used < 1.35


def test_a_volume_is_no_larger_than_the_storage(driver: LocalDriver, plane: ControlPlane, tmp_path: Path) -> None:
    """E-255: what a pod writes ends at its storage, without harm to the host; else `unenforced` says so."""
    driver.apply(spec(plane.url))
    pod = joined(driver, plane)
    assert pod.bash("truncate -s 1025M big").output["exitCode"] != 0
    assert pod.sh("truncate -s 1024M big; stat -c %s big; rm big") == str(1 << 30)
    if "storage" in driver.status(NAME).unenforced:
        return
    pod.sh("fallocate -l 900M /harness/most")
    reply = pod.bash("head -c 200000000 /dev/zero > rest; sync rest; stat -c %s rest")
    assert b"No space left" in reply.err
    assert int(reply.text) < 124 * MIB
    assert pod.call("write", {"path": "more"}, b"x" * 100_000).code == "tool.no_space"
    with own_pods(driver, OTHER):
        driver.apply(spec(plane.url, name=OTHER))
        assert joined(driver, plane, OTHER).sh("fallocate -l 900M most; stat -c %s most") == str(900 * MIB)
    (tmp_path / "host").write_bytes(b"x" * 100_000)
    assert pod.sh("rm rest; echo room > more; cat more") == "room"

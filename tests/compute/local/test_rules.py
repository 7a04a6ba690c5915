"""The pure parts: cgroup discovery and caps, the system call filter, the sandbox's arguments, and outside uids."""

from __future__ import annotations

import errno
import os
import resource
import struct
from pathlib import Path

import pytest

from environments.compute.local import bwrap, limits, owners, seccomp
from environments.compute.local.driver import rev
from environments.compute.local.limits import Caps, Hierarchy
from environments.compute.local.places import Place

CAPS = Caps(cpus=2, memory=256 << 20, pids=512)
CGROUP_HYBRID = "5:devices:/\n4:memory:/mine/a\n3:cpu,cpuacct:/\n2:pids:/\n1:name=systemd:/x\n0::/uni\n"
MOUNTS_HYBRID = (
    "30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 30 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    "34 30 0:30 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
    "35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


# ------------------------------------------------------------------------------------------------ cgroups


def test_hierarchies_of_a_host_with_both_versions() -> None:
    found = limits.hierarchies(CGROUP_HYBRID, MOUNTS_HYBRID)
    assert [(tree.version, sorted(tree.controllers), str(tree.own)) for tree in found] == [
        (1, ["memory"], "/sys/fs/cgroup/memory/mine/a"),
        (1, ["cpu"], "/sys/fs/cgroup/cpu"),
        (1, ["pids"], "/sys/fs/cgroup/pids"),
        (2, [], "/sys/fs/cgroup/unified/uni"),
    ]


def test_hierarchies_inside_a_container_are_relative_to_what_is_mounted() -> None:
    mounts = "31 30 0:27 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    (tree,) = limits.hierarchies("2:pids:/docker/abc/inner\n", mounts)
    assert tree.own == Path("/sys/fs/cgroup/pids/inner")


def kernel_like(folder: Path, *names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a new folder have the files that the kernel gives a new cgroup, as `mkdir` returns."""
    make = Path.mkdir

    def mkdir(self: Path, *args: object, **kwargs: object) -> None:
        make(self, *args, **kwargs)  # type: ignore[arg-type]
        if folder in self.parents:
            for name in names:
                (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)


def test_caps_of_version_1_are_set_in_a_child_of_the_own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is made below our own; a controller whose files are missing holds nothing and leaves nothing."""
    (tmp_path / "cgroup.procs").touch()
    files = ("cpu.cfs_period_us", "cpu.cfs_quota_us", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    kernel_like(tmp_path, *files, monkeypatch=monkeypatch)
    tree = Hierarchy(1, frozenset({"cpu", "memory"}), tmp_path, tmp_path)
    groups = limits.make_groups("pod", CAPS, [tree])
    assert groups.held == {"cpus", "memory"}
    assert groups.folders == (str(tmp_path / "pod"),)
    assert (tmp_path / "pod" / "cpu.cfs_quota_us").read_text() == "200000"
    assert (tmp_path / "pod" / "memory.memsw.limit_in_bytes").read_text() == str(256 << 20)


def test_caps_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.procs").touch()
    kernel_like(tmp_path, "cpu.max", "memory.max", "memory.swap.max", "pids.max", monkeypatch=monkeypatch)
    groups = limits.make_groups("pod", CAPS, [Hierarchy(2, frozenset(), tmp_path, tmp_path)])
    assert groups.held == {"cpus", "memory", "pids"}
    values = {path.name: path.read_text() for path in (tmp_path / "pod").iterdir()}
    assert values == {
        "cpu.max": "200000 100000",
        "memory.max": str(256 << 20),
        "memory.swap.max": "0",
        "pids.max": "512",
    }


def test_a_group_that_would_hold_nothing_is_not_left_behind(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    groups = limits.make_groups("pod", CAPS, [Hierarchy(2, frozenset(), tmp_path, tmp_path)])
    assert groups == limits.Groups((), frozenset())
    assert not (tmp_path / "pod").exists()


def test_a_full_group_of_version_2_gets_its_pods_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "service"
    own.mkdir()
    (tmp_path / "cgroup.procs").touch()
    kernel_like(tmp_path, "pids.max", monkeypatch=monkeypatch)
    groups = limits.make_groups("pod", CAPS, [Hierarchy(2, frozenset(), own, tmp_path)])
    assert groups.folders == (str(tmp_path / "pod"),)
    assert set(groups.folders) <= set(limits.possible_folders("pod", [Hierarchy(2, frozenset(), own, tmp_path)]))


@pytest.mark.parametrize(
    ("held", "own_uid", "loose", "stand_ins"),
    [
        ({"cpus", "memory", "pids", "storage"}, True, (), set()),
        ({"cpus", "memory", "pids"}, True, ("storage",), set()),
        ({"pids"}, True, ("cpus", "memory", "storage"), {resource.RLIMIT_DATA}),
        (set(), True, ("cpus", "memory", "storage"), {resource.RLIMIT_DATA, resource.RLIMIT_NPROC}),
        (set(), False, ("cpus", "memory", "pids", "storage"), {resource.RLIMIT_DATA}),
    ],
)
def test_what_is_not_held_is_said_and_stood_in_for(
    held: set[str], own_uid: bool, loose: tuple[str, ...], stand_ins: set[int]
) -> None:
    """E-255: `unenforced` names exactly the caps that nothing holds."""
    assert limits.unenforced(frozenset(held), own_uid=own_uid) == loose
    always = {resource.RLIMIT_CORE, resource.RLIMIT_FSIZE}
    assert set(limits.process_limits(CAPS, frozenset(held), 1 << 30, own_uid=own_uid)) == always | stand_ins


# ------------------------------------------------------------------------------------------------ the filter


def decide(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Run the filter as the kernel does: a call in, its verdict out."""
    audit = seccomp.ARCHITECTURES[machine].audit if arch is None else arch
    data = struct.pack("=IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
    position = accumulator = 0
    while True:
        code, if_true, if_false, value = program[position]
        position += 1
        if code == seccomp.LD_WORD:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == seccomp.RETURN:
            return int(value)
        else:
            true = {
                seccomp.JUMP_EQUAL: accumulator == value,
                seccomp.JUMP_AT_LEAST: accumulator >= value,
                seccomp.JUMP_ANY_BIT: bool(accumulator & value),
            }[code]
            position += if_true if true else if_false


def fails(number: int) -> int:
    return seccomp.FAIL | number


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_on_both_machines(machine: str) -> None:
    """Each denied call is refused, and each call that programs need is allowed, on the machine it is a number of."""
    arch = seccomp.ARCHITECTURES[machine]
    for name, number in arch.denied.items():
        assert decide(machine, number) == fails(errno.EPERM), name
    assert decide(machine, seccomp.CLONE3) == fails(errno.ENOSYS)
    assert decide(machine, arch.clone, 17) == seccomp.ALLOW
    assert decide(machine, arch.clone, 0x3D0F00) == seccomp.ALLOW  # a thread
    for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(machine, arch.clone, flag | 17) == fails(errno.EPERM)
    assert decide(machine, arch.ioctl, 1, 0x5413) == seccomp.ALLOW
    assert decide(machine, arch.ioctl, 1, seccomp.TIOCSTI) == fails(errno.EPERM)
    assert decide(machine, arch.ioctl, 1, seccomp.TIOCLINUX) == fails(errno.EPERM)
    for family in range(46):
        allowed = family in (1, 2, 10, 16)
        assert decide(machine, arch.socket, family, 1, 0) == (seccomp.ALLOW if allowed else fails(errno.EAFNOSUPPORT))
    for protocol in range(1, 23):
        assert decide(machine, arch.socket, 16, 3, protocol) == fails(errno.EAFNOSUPPORT)
    checked = {arch.clone, arch.ioctl, arch.socket, seccomp.CLONE3, *arch.denied.values()}
    for number in set(range(470)) - checked:
        assert decide(machine, number) == seccomp.ALLOW


def test_code_of_another_machine_is_ended() -> None:
    assert decide("x86_64", 1, arch=0x40000003) == seccomp.KILL_PROCESS  # 32-bit x86
    assert decide("aarch64", 1, arch=0x40000028) == seccomp.KILL_PROCESS  # 32-bit Arm
    assert decide("x86_64", seccomp.X32_BIT | 1) == fails(errno.ENOSYS)
    with pytest.raises(seccomp.UnknownMachine):
        seccomp.program("pdp11")


# ------------------------------------------------------------------------------------------------ arguments, uids, revs


def sandbox(**host: object) -> list[bwrap.Argument]:
    values: dict[str, object] = {
        "top": {"bin": "usr/bin", "lib": None}, "etc": ("ssl/certs",), "python": "/p/bin/python", "prefix": "/p",
        "engine": "/e", "seccomp": b"filter",
    }  # fmt: skip
    box = bwrap.Box("name", "/v/workspace", "/v/harness", 1 << 30, 512, "nylorun-pod=x", {"A": "b c"})
    return bwrap.options(bwrap.Host(**{**values, **host}), box)  # type: ignore[arg-type]


def pairs(options: list[bwrap.Argument], name: str) -> list[tuple[bwrap.Argument, bwrap.Argument]]:
    return [(options[at + 1], options[at + 2]) for at, option in enumerate(options[:-2]) if option == name]


def test_only_the_volume_is_bound_writable() -> None:
    options = sandbox()
    assert pairs(options, "--bind") == [
        (bwrap.Folder("/v/workspace"), "/workspace"), (bwrap.Folder("/v/harness"), "/harness"),
    ]  # fmt: skip
    assert not {"--dev-bind", "--share-net", "--overlay", "--cap-add"} & set(map(str, options))
    assert pairs(options, "--ro-bind") == [
        ("/usr", "/usr"), ("/lib", "/lib"), ("/etc/ssl/certs", "/etc/ssl/certs"), (bwrap.Folder("/p"), "/p"),
        (bwrap.Folder("/e"), bwrap.ENGINE),
    ]  # fmt: skip
    assert options.index("--remount-ro") > max(
        options.index(word) for word in ("--bind", "--symlink", "--tmpfs", "--dev")
    )
    for word in ("--unshare-all", "--disable-userns", "--die-with-parent", "--new-session", "--clearenv", "--seccomp"):
        assert word in options


def test_an_interpreter_below_usr_needs_no_folder_of_its_own() -> None:
    assert "/p" not in [target for _, target in pairs(sandbox(prefix=None), "--ro-bind")]
    assert ("A", "b c") in pairs(sandbox(), "--setenv")


def test_uids_of_a_data_folder_are_its_own_stretch() -> None:
    everything = "         0          0 4294967295\n"
    ranges = {owners.uid_range(Path(f"/data/{number}"), everything) for number in range(50)}
    assert len(ranges) > 40
    for first, last in ranges:
        assert owners.FIRST <= first < last <= owners.LAST
    assert owners.uid_range(Path("/data"), "0 100000 65536\n") == (32768, 65536)


def test_a_volume_keeps_its_uid_and_shares_it_with_no_other(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        assert owners.pick(Place(tmp_path, "a")) is None
        return
    uids = []
    for name, as_image in (("a", False), ("b", True), ("c", False), ("d", True)):
        place = Place(tmp_path, name)
        place.make_folders()
        uids.append(owners.pick(place))
        place.claim_volume(uids[-1], as_image=as_image)
    assert len(set(uids)) == 4
    assert [owners.pick(Place(tmp_path, name)) for name in "abcd"] == uids


@pytest.mark.parametrize(("op_id", "number"), [("sbx-a-g0.r7", 7), ("sbx-a.r-g0.r12", 12), ("sbx-a-g0.rx", 0), ("", 0)])
def test_the_rev_of_an_op_id(op_id: str, number: int) -> None:
    assert rev(op_id) == number

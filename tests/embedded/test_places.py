"""Places: folders closed to others, programs a server's user can read, files kept whole."""

import os
import stat
from pathlib import Path

import pytest

from nylorun.embedded import places
from nylorun.embedded.places import SOCKET_PATH_MAX, PlaceError


@pytest.fixture
def program(tmp_path: Path) -> Path:
    root = tmp_path / "closed" / "program"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "run").write_text("#!/bin/sh\n")
    (root / "bin" / "run").chmod(0o700)
    (root / "data").write_text("text")
    root.parent.chmod(0o700)
    return root


def test_a_program_another_user_cannot_read_is_copied_once_where_it_can(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "CACHE", tmp_path / "cache")
    copy = places.open_program((program,), 4711)
    assert copy != program
    assert (copy / "data").read_text() == "text"
    assert stat.S_IMODE((copy / "bin/run").stat().st_mode) == 0o755
    assert stat.S_IMODE((copy / "data").stat().st_mode) == 0o644
    assert places.open_program((program,), 4711) == copy
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_changed_program_is_copied_again(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "CACHE", tmp_path / "cache")
    first = places.open_program((program,), 4711)
    (program / "data").write_text("other text")
    assert (places.open_program((program,), 4711) / "data").read_text() == "other text"
    assert (first / "data").read_text() == "text"


def test_the_callers_own_program_is_used_where_it_is(program: Path) -> None:
    assert places.open_program((program,), None) == program


def test_a_socket_folder_is_the_wanted_one_when_its_path_is_short() -> None:
    wanted = Path("/tmp") / f"nylorun-test-{os.getpid()}"
    try:
        assert places.socket_folder(wanted, "s", None) == wanted
        assert stat.S_IMODE(wanted.stat().st_mode) == 0o700
    finally:
        wanted.rmdir()


def test_a_socket_folder_is_short_and_the_same_each_time_when_the_wanted_one_is_deep(tmp_path: Path) -> None:
    wanted = tmp_path / ("d" * 120)
    found = places.socket_folder(wanted, "engine.sock", None)
    assert len(str(found / "engine.sock")) <= SOCKET_PATH_MAX
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert places.socket_folder(wanted, "engine.sock", None) == found
    other = places.socket_folder(tmp_path / ("e" * 120), "engine.sock", None)
    assert other != found
    for folder in (found, other):
        folder.rmdir()


def test_a_folder_that_others_can_enter_is_refused_for_sockets(tmp_path: Path) -> None:
    wanted = tmp_path / ("d" * 120)
    found = places.socket_folder(wanted, "engine.sock", None)
    found.chmod(0o755)
    try:
        with pytest.raises(PlaceError, match=f"{found} is not a private folder"):
            places.socket_folder(wanted, "engine.sock", None)
    finally:
        found.rmdir()


def test_kept_draws_once_and_closes_the_file_to_others(tmp_path: Path) -> None:
    drawn = iter(["first", "second"])
    assert places.kept(tmp_path / "secret", lambda: next(drawn)) == "first"
    assert places.kept(tmp_path / "secret", lambda: next(drawn)) == "first"
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_kept_leaves_nothing_behind_when_drawing_fails(tmp_path: Path) -> None:
    def fail() -> str:
        raise RuntimeError("no key")

    with pytest.raises(RuntimeError, match="no key"):
        places.kept(tmp_path / "secret", fail)
    assert list(tmp_path.iterdir()) == []

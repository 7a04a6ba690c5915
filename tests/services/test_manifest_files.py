"""Definition files: on the disk before their row, and never handed out changed."""

import hashlib
import os
from types import SimpleNamespace

import pytest

from manifests import content
from manifests.errors import ContentMismatch
from manifests.models import DefinitionFile
from manifests.queries import definition_bytes
from manifests.services.files import held_file, keep_file
from nylorun.db.tx import TransactionOpen, transact
from nylorun.kernel.errors import ServiceUnavailable

pytestmark = pytest.mark.django_db

DATA = b"hello\n" * 1000
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The data folder of this test."""
    settings = SimpleNamespace(data_dir=tmp_path)
    monkeypatch.setattr(content, "config", SimpleNamespace(current=lambda: settings))
    return tmp_path


def files(folder):
    """Every file below the folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def pieces():
    """The content in three pieces."""
    return [DATA[:10], DATA[10:20], DATA[20:]]


def test_content_is_kept_by_its_hash(folder):
    """E-58: one row, one file, the same bytes."""
    assert keep_file(SHA, pieces) == held_file(SHA).__class__(SHA, len(DATA), created=True)
    assert files(folder) == [f"definitions/{SHA[:2]}/{SHA}"]
    assert list(DefinitionFile.objects.values_list("sha256", "size")) == [(SHA, len(DATA))]
    assert definition_bytes(f"sha256:{SHA}") == DATA


def test_held_content_is_not_read_again(folder):
    """E-58: the second time nothing is read."""
    keep_file(SHA, pieces)

    def nobody():
        raise AssertionError("the body was read")

    kept = keep_file(SHA, nobody)
    assert (kept.size, kept.created) == (len(DATA), False)


@pytest.mark.parametrize("wrong", [b"", DATA[:-1], DATA + b"x", b"x" * len(DATA)])
def test_other_content_is_refused_and_leaves_nothing(folder, wrong):
    """E-58: the hash of what came is told."""
    with pytest.raises(ContentMismatch) as caught:
        keep_file(SHA, lambda: [wrong])
    actual = hashlib.sha256(wrong).hexdigest()
    assert caught.value.details == {"expected": f"sha256:{SHA}", "actual": f"sha256:{actual}"}
    assert files(folder) == []
    assert held_file(SHA) is None


def test_empty_content_is_content(folder):
    """E-58: a file of no bytes has a hash too."""
    sha = hashlib.sha256(b"").hexdigest()
    assert keep_file(sha, list).size == 0
    assert held_file(sha).size == 0
    assert definition_bytes(sha) == b""


def test_an_upload_that_breaks_off_leaves_nothing(folder):
    """E-58: whatever ends the stream ends the write."""

    def broken():
        yield DATA[:100]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        keep_file(SHA, broken)
    assert files(folder) == []
    assert keep_file(SHA, pieces).created


def test_a_crash_before_the_row_leaves_only_an_unnamed_file(folder, monkeypatch):
    """E-58: content without a row is not held, and the next upload puts things right."""

    def crash(work):
        raise SystemExit

    monkeypatch.setattr("manifests.services.files.transact", crash)
    with pytest.raises(SystemExit):
        keep_file(SHA, pieces)
    assert held_file(SHA) is None
    monkeypatch.undo()
    monkeypatch.setattr(content, "config", SimpleNamespace(current=lambda: SimpleNamespace(data_dir=folder)))
    assert keep_file(SHA, pieces).created
    assert definition_bytes(SHA) == DATA


def test_the_content_is_durable_before_it_has_its_name(folder, monkeypatch):
    """E-58: bytes are synced before the rename, the folders after it."""
    steps = []
    real_sync, real_rename = os.fsync, type(folder).rename
    monkeypatch.setattr(
        os, "fsync", lambda handle: (steps.append(os.readlink(f"/proc/self/fd/{handle}")), real_sync(handle))
    )
    monkeypatch.setattr(
        type(folder), "rename", lambda path, to: (steps.append(f"rename {to.name}"), real_rename(path, to))
    )
    keep_file(SHA, pieces)
    place = folder / "definitions" / SHA[:2]
    assert steps[0].endswith(".part")
    assert steps[1:] == [f"rename {SHA}", str(place), str(place.parent)]


def test_damaged_content_is_never_handed_out(folder):
    """E-58: cut, changed or missing content is a fault, and sending it again heals it."""
    keep_file(SHA, pieces)
    path = folder / "definitions" / SHA[:2] / SHA
    path.write_bytes(DATA[:-1] + b"x")
    with pytest.raises(ServiceUnavailable, match="damaged"):
        definition_bytes(SHA)
    path.write_bytes(DATA[:-1])
    with pytest.raises(ServiceUnavailable, match="damaged"):
        definition_bytes(SHA)
    path.unlink()
    with pytest.raises(ServiceUnavailable, match="cannot be read"):
        definition_bytes(SHA)
    assert keep_file(SHA, pieces).created is False
    assert definition_bytes(SHA) == DATA


def test_no_file_is_touched_inside_a_transaction(folder):
    """E-58: the disk is never waited for under a lock."""
    for work in (lambda: keep_file(SHA, pieces), lambda: content.write(SHA, pieces()), lambda: definition_bytes(SHA)):
        with pytest.raises(TransactionOpen):
            transact(lambda tx, work=work: work())
    assert files(folder) == []

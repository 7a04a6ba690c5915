"""Opening: the use is written and committed first, and without it nothing leaves."""

from __future__ import annotations

from typing import Any

import pytest

from nylorun.db.tx import transact
from nylorun.kernel.errors import ServiceUnavailable
from nylorun.kernel.sealing import Unreadable
from tests.support.client import Api
from tests.vault.helpers import BEARER, HEADERS, HOST, PLAIN, TRAIL, VARIABLE, opened, permitted, put, row, secret, uses
from vault import keys
from vault.models import Secret, VaultAudit
from vault.services import audit, listing, opening
from vault.services.opening import NotCommitted


def test_a_call_opens_its_variables_after_the_commit_that_noted_their_use(demo: Api) -> None:
    """E-73, E-265: only variables; one ``use`` row each, with who, where and for which Session."""
    put(demo, "A", VARIABLE)
    put(demo, "B", {**VARIABLE, "value": "other"})
    put(demo, "KEY", BEARER)
    permit = permitted()
    assert permit.names == ["A", "B"]
    assert uses() == [("approved", "A", None), ("approved", "B", None)]
    line = VaultAudit.objects.filter(action="use").first()
    assert line is not None
    assert (line.actor, line.environment_id, line.session_id, line.credential_id) == (
        "ada", "demo", "chat-1", secret("A").id,
    )  # fmt: skip
    values = opening.open_variables(permit)
    assert {name: value.reveal_text() for name, value in values.items()} == {"A": PLAIN, "B": "other"}
    assert PLAIN not in repr(values)
    assert PLAIN not in repr(permit)


def test_a_call_without_variables_writes_nothing(demo: Api) -> None:
    """E-73: no Secret, no row."""
    put(demo, "KEY", BEARER)
    assert opened() == {}
    assert uses() == []


def test_a_permit_opens_nothing_before_its_commit_or_without_it(demo: Api) -> None:
    """E-73: an open transaction and one that rolled back."""
    put(demo, "A", VARIABLE)
    kept = []

    def work(tx: Any) -> None:
        kept.append(opening.note_use(tx, row().uid, trail=TRAIL, now=tx.now()))
        raise Unreadable

    with pytest.raises(Unreadable):
        transact(work)
    with pytest.raises(NotCommitted):
        opening.open_variables(kept[0])
    assert uses() == []


def test_when_the_audit_cannot_be_written_nothing_leaves(demo: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-73: neither for a call nor for a tunnel; nothing is even decrypted."""
    put(demo, "A", VARIABLE)
    put(demo, "KEY", BEARER)

    def fails(*args: Any, **named: Any) -> None:
        raise ServiceUnavailable

    def never(*args: Any) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(audit, "note", fails)
    monkeypatch.setattr(keys, "open_value", never)
    with pytest.raises(ServiceUnavailable):
        opened()
    with pytest.raises(ServiceUnavailable):
        opening.open_bound(row().uid, "api.example.org", trail=TRAIL)


def test_a_tunnel_opens_what_is_bound_to_its_host(demo: Api) -> None:
    """E-73: a commit of its own, the host as target, no other Secret."""
    put(demo, "A", VARIABLE)
    put(demo, "KEY", BEARER)
    put(demo, "SITE", HEADERS)
    put(demo, "HOST", HOST)
    (bound,) = opening.open_bound(row().uid, "api.example.org", trail=TRAIL)
    assert (bound.name, bound.type, bound.value.reveal_text()) == ("KEY", "bearer", PLAIN)
    assert bound.binding == {"type": "bearer", "url": "https://api.example.org/v1"}
    (site,) = opening.open_bound(row().uid, "b.example.org", trail=TRAIL)
    assert site.value.reveal_headers() == {"X-Api-Key": PLAIN}
    assert opening.open_bound(row().uid, "d.example.org", trail=TRAIL) == []
    assert uses() == [("approved", "KEY", "api.example.org"), ("approved", "SITE", "b.example.org")]


def test_a_secret_that_cannot_be_read_is_noted_as_refused(demo: Api) -> None:
    """E-73: after the use that was approved; the caller hears the one error."""
    put(demo, "KEY", BEARER)
    Secret.objects.update(kek_id="0" * 64)
    with pytest.raises(Unreadable):
        opening.open_bound(row().uid, "api.example.org", trail=TRAIL)
    assert uses() == [("approved", "KEY", "api.example.org"), ("refused", "KEY", "api.example.org")]


def test_what_may_be_known_without_opening(demo: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-74: names, bindings, hosts, headers; a placeholder for a hidden Secret whose name a variable can have."""
    monkeypatch.setattr(keys, "open_value", None)
    put(demo, "A", VARIABLE)
    put(demo, "KEY", {**BEARER, "identity": {"header": "X-Subject"}})
    put(demo, "SITE.X", HEADERS)
    put(demo, "HOST", HOST)
    uid = row().uid
    assert listing.variable_names(uid) == ["A"]
    assert listing.placeholder_names(uid) == ["HOST", "KEY"]
    assert listing.PLACEHOLDER == "nylorun-managed"
    assert [(one.name, one.hosts, sorted(one.headers)) for one in listing.bound_to(uid)] == [
        ("KEY", ("api.example.org",), ["authorization", "x-subject"]),
        ("SITE.X", ("b.example.org",), ["x-api-key"]),
        ("HOST", ("c.example.org",), ["authorization"]),
    ]
    assert uses() == []


def test_new_values_reach_the_next_call(demo: Api) -> None:
    """E-71: nothing restarts; a removed one is gone."""
    put(demo, "A", VARIABLE)
    put(demo, "A", {**VARIABLE, "value": "new"})
    assert opened() == {"A": "new"}
    demo.delete("/v1/environments/demo/secrets/A")
    assert opened() == {}

"""Environments over HTTP: what goes in, what comes out, which row and which events stay."""

from __future__ import annotations

from typing import Any

import pytest

from environments.compute.fake import FakeDriver
from nylorun.record.models import Event
from tests.support.client import Api

URL = "/v1/environments/demo"


def types(id: str) -> list[str]:
    return list(Event.objects.filter(stream=id).order_by("seq").values_list("type", flat=True))


def test_put_makes_a_virtual_environment_by_default_and_finds_it_again(api: Api) -> None:
    """E-04, E-20, E-231: get-or-create in one call, default kind virtual, 201 then 200."""
    first = api.put(URL, {})
    assert (first.status, first.json["kind"], first.json["state"]) == (201, "virtual", "ready")
    again = api.put(URL, {})
    assert again.status == 200
    assert again.json["createdAt"] == first.json["createdAt"]
    assert types("demo") == ["created"]


def test_the_view_of_a_new_environment_has_every_member(api: Api) -> None:
    """E-22, E-23, E-25, E-28: version 1, hash of the Recipe, Recipe as manifest, ownerUserId null."""
    view = api.put(URL, {"kind": "none", "labels": {"team": "a"}}).json
    assert view["manifest"] == {"harness": "nylorun", "lifecycle": {}}
    assert view["manifestHash"].startswith("sha256:")
    assert (view["version"], view["appliedVersion"], view["ownerUserId"], view["sessions"]) == (1, 1, None, [])
    assert view["state"] == "ready"
    assert "pod" not in view
    assert "disk" not in view


def test_an_id_with_a_slash_is_one_encoded_segment(api: Api) -> None:
    """E-32: slash segments travel percent-encoded."""
    made = api.put("/v1/environments/team-a%2Fp1", {"kind": "none"})
    assert (made.status, made.json["id"]) == (201, "team-a/p1")
    assert made.headers["Location"] == "/v1/environments/team-a%2Fp1"
    assert api.get("/v1/environments/team-a%2Fp1").status == 200
    assert api.get("/v1/environments/team-a/p1").status == 404


@pytest.mark.parametrize(
    "id", ["-a", "a%20b", "a%2F", "a%2F%2Fb", "%2Fa", ".", "..", "a%00", "x" * 201, "%C3%A4", "a%2F..%2Fb"]
)
def test_a_malformed_id_is_refused(api: Api, id: str) -> None:
    """E-32: the grammar of ids, traversal included; nothing is written."""
    answer = api.put(f"/v1/environments/{id}", {"kind": "none"})
    assert answer.status in (400, 404)
    assert Event.objects.count() == 0


def test_inline_fields_that_differ_are_refused_as_immutable(api: Api) -> None:
    """E-09, E-11: sorted fields; the message names the fork route, percent-encoded."""
    api.put("/v1/environments/a%2Fb", {"resources": {"cpus": 1}, "lifecycle": {"deleteAfter": "1d"}})
    answer = api.put("/v1/environments/a%2Fb", {"resources": {"cpus": 2}, "lifecycle": {"deleteAfter": "2d"}})
    assert (answer.status, answer.json["code"]) == (409, "environment_immutable")
    assert answer.json["details"] == {"fields": ["lifecycle", "resources"]}
    assert "POST /v1/environments/a%2Fb/fork" in answer.json["message"]


def test_kind_is_compared_first_and_alone(api: Api) -> None:
    """E-10: kind differs: kind alone is named."""
    api.put(URL, {"kind": "virtual"})
    answer = api.put(URL, {"kind": "none", "lifecycle": {"deleteAfter": "2d"}})
    assert answer.json["details"] == {"fields": ["kind"]}


def test_storage_is_compared_normalised_and_alone(api: Api, pods: FakeDriver) -> None:
    """E-10, E-53: 5120MiB is 5GiB; another size names storage alone."""
    api.put(URL, {"kind": "pod", "storage": "5GiB"})
    assert api.put(URL, {"kind": "pod", "storage": "5120MiB"}).status == 200
    answer = api.put(URL, {"storage": "6GiB", "image": "other"})
    assert answer.json["details"] == {"fields": ["storage"]}


def test_manifest_and_inline_fields_together_are_refused(api: Api) -> None:
    """E-05: never both; the message names the inline fields."""
    answer = api.put(URL, {"manifest": "box", "image": "x", "kind": "pod"})
    assert answer.status == 400
    assert "kind" in answer.json["message"]
    assert "image" in answer.json["message"]


def test_an_unreadable_reference_is_refused(api: Api) -> None:
    """E-07: a reference that does not parse is 400."""
    assert api.put(URL, {"manifest": "Bad@0"}).status == 400


def test_made_from_a_manifest_and_matched_by_reference(api: Api) -> None:
    """E-08, E-19: a bare name matches whatever is latest, name@n must be the recorded version."""
    missing = api.put(URL, {"manifest": "box"})
    assert (missing.status, missing.json["code"]) == (404, "manifest_not_found")
    api.put("/v1/environment-manifests/box", {"kind": "none"})
    view = api.put(URL, {"manifest": "box"}).json
    assert (view["manifestName"], view["manifestVersion"]) == ("box", 1)
    api.put("/v1/environment-manifests/box", {"kind": "none", "lifecycle": {"deleteAfter": "1d"}})
    assert api.put(URL, {"manifest": "box"}).status == 200
    assert api.put(URL, {"manifest": "box@1"}).status == 200
    other = api.put(URL, {"manifest": "box@2"})
    assert other.json["details"] == {"fields": ["manifest"], "manifest": "box@1"}
    unknown = api.put("/v1/environments/new", {"manifest": "box@9"})
    assert (unknown.status, unknown.json["code"]) == (404, "manifest_not_found")


def test_labels_and_guard_change_only_when_sent(api: Api) -> None:
    """E-12: labels replace when sent and different; the guard is set, or cleared with null."""
    api.put(URL, {"kind": "none", "labels": {"a": "1"}, "ownerUserId": "ada"})
    assert api.put(URL, {}).json["labels"] == {"a": "1"}
    assert api.put(URL, {"labels": {"b": "2"}}).json["labels"] == {"b": "2"}
    assert api.put(URL, {}).json["ownerUserId"] == "ada"
    assert api.put(URL, {"ownerUserId": None}).json["ownerUserId"] is None


def test_every_put_is_a_use(api: Api, clock: Any) -> None:
    """E-13: lastUsedAt moves, updatedAt does not."""
    first = api.put(URL, {"kind": "none"}).json
    clock.advance(seconds=5)
    again = api.put(URL, {}).json
    assert again["lastUsedAt"] > first["lastUsedAt"]
    assert again["updatedAt"] == first["updatedAt"]


def test_times_never_go_back(api: Api, clock: Any) -> None:
    """E-296: a clock stepped back an hour moves nothing back."""
    first = api.put(URL, {"kind": "none"}).json
    clock.advance(hours=-1)
    again = api.put(URL, {"labels": {"a": "b"}}).json
    assert again["lastUsedAt"] == first["lastUsedAt"]
    assert again["updatedAt"] >= first["updatedAt"]


def test_put_on_an_existing_pod_neither_starts_nor_changes_it(api: Api, pods: FakeDriver) -> None:
    """E-14: a stopped pod stays stopped."""
    api.put(URL, {"kind": "pod"})
    api.post(f"{URL}/stop", {})
    before = api.get(URL).json["pod"]
    assert api.put(URL, {"labels": {"x": "y"}}).json["pod"] == before
    assert before["desired"] == "suspended"


def test_from_on_an_existing_one_is_refused(api: Api) -> None:
    """E-15: from applies only to a create."""
    api.put(URL, {})
    assert api.put(URL, {"from": {"environment": "other", "version": 1}}).status == 409


def test_from_needs_a_source_with_a_disk_and_the_version(api: Api) -> None:
    """E-128: a missing source is 404, kind none has no disk, a missing version is named."""
    assert api.put(URL, {"from": {"environment": "base", "version": "latest"}}).status == 404
    api.put("/v1/environments/none", {"kind": "none"})
    assert api.put(URL, {"from": {"environment": "none", "version": 1}}).status == 400
    api.put("/v1/environments/base", {})
    answer = api.put(URL, {"from": {"environment": "base", "version": 3}})
    assert (answer.status, answer.json["code"], answer.json["details"]) == (
        404,
        "disk_version_not_found",
        {"version": 3},
    )
    assert api.get(URL).status == 404


def test_the_number_of_environments_is_limited_and_a_delete_frees_its_place(api: Api) -> None:
    """E-18: the count limit, freed at the request of a delete."""
    api.put("/v1/tenant/sandbox", {"limits": {"environments": 1}})
    assert api.put(URL, {"kind": "none"}).status == 201
    over = api.put("/v1/environments/two", {"kind": "none"})
    assert (over.status, over.json["code"], over.json["details"]) == (
        409,
        "limit_exceeded",
        {"limit": "environments", "max": 1},
    )
    assert api.put(URL, {}).status == 200
    api.delete(URL)
    assert api.put("/v1/environments/two", {"kind": "none"}).status == 201


def test_a_deleted_pods_place_is_free_at_once(api: Api, pods: FakeDriver) -> None:
    """E-37: the row stays, invisible, until its machine is gone; the number does not count it."""
    api.put("/v1/tenant/sandbox", {"limits": {"environments": 1}})
    api.put(URL, {"kind": "pod"})
    assert api.delete(URL).json == {"id": "demo", "deleted": True}
    assert api.get(URL).status == 404
    assert api.get("/v1/environments").json["environments"] == []
    busy = api.put(URL, {"kind": "pod"})
    assert (busy.status, busy.json["code"], busy.headers["Retry-After"]) == (409, "environment_busy", "5")
    assert api.put("/v1/environments/two", {"kind": "none"}).status == 201


def test_delete_says_what_it_did(api: Api) -> None:
    """E-34: {id, deleted}; missing is false, not an error."""
    assert api.delete(URL).json == {"id": "demo", "deleted": False}
    api.put(URL, {"kind": "none"})
    assert api.delete(URL).json == {"id": "demo", "deleted": True}
    assert api.delete(URL).json == {"id": "demo", "deleted": False}
    assert types("demo") == ["created", "deleted"]


def test_events_survive_a_delete_and_go_on_counting(api: Api) -> None:
    """E-144, E-146: reach is checked, existence is not; a row made again continues the numbers."""
    api.put(URL, {"kind": "none"})
    api.delete(URL)
    api.put(URL, {"kind": "none"})
    events = api.get(f"{URL}/events").json["events"]
    assert [event["seq"] for event in events] == [0, 1, 2]
    assert [event["type"] for event in events] == ["environment.created", "environment.deleted", "environment.created"]


def test_event_envelopes_have_exactly_their_members(api: Api) -> None:
    """E-141, E-145: schema, ids, seq, time, type, payload."""
    api.put("/v1/environment-manifests/box", {"kind": "none"})
    api.put(URL, {"manifest": "box", "labels": {"a": "b"}})
    (event,) = api.get(f"{URL}/events").json["events"]
    assert set(event) == {"schema", "eventId", "tenantId", "environmentId", "seq", "time", "type", "payload"}
    assert event["schema"] == "nylorun.environment-event/1"
    assert event["payload"] == {"kind": "none", "labels": {"a": "b"}, "manifest": {"name": "box", "version": 1}}


def test_events_are_filtered(api: Api, clock: Any) -> None:
    """E-143: from, limit, types, since inclusive, until exclusive."""
    api.put(URL, {"kind": "none"})
    clock.advance(seconds=10)
    api.delete(URL)
    url = f"{URL}/events"
    first, second = api.get(url).json["events"]
    assert api.get(f"{url}?from=1").json["events"] == [second]
    assert api.get(f"{url}?fromSeq=1").json["events"] == [second]
    assert api.get(f"{url}?limit=1").json["events"] == [first]
    assert api.get(f"{url}?type=environment.deleted").json["events"] == [second]
    assert api.get(f"{url}?since={second['time']}").json["events"] in ([second], [])
    assert api.get(f"{url}?until={second['time']}").json["events"] == [first]


@pytest.mark.parametrize(
    "query",
    [
        "from=-1",
        "from=x",
        "limit=0",
        "limit=1001",
        "type=environment.nothing",
        "type=created",
        "since=yesterday",
        "since=0001-01-01T00:00:00%2B23:59",
        "until=9999-12-31T23:59:59-23:59",
        "other=1",
        "limit=1&limit=2",
    ],
)
def test_a_bad_events_query_is_refused(api: Api, query: str) -> None:
    """E-143: bad numbers, times and types are 400."""
    assert api.get(f"{URL}/events?{query}").status == 400


def test_list_by_labels_in_order_of_ids(api: Api) -> None:
    """E-30: all labels must match; ordered by code point."""
    for id, labels in (("b", {"t": "1", "u": "2"}), ("a", {"t": "1"}), ("B", {"t": "1"}), ("c", {})):
        api.put(f"/v1/environments/{id}", {"kind": "none", "labels": labels})
    ids = lambda query: [view["id"] for view in api.get(f"/v1/environments?{query}").json["environments"]]  # noqa: E731
    assert ids("label=t=1") == ["B", "a", "b"]
    assert ids("label=t=1&label=u=2") == ["b"]
    assert ids("") == ["B", "a", "b", "c"]
    assert ids("label=t=") == []


def test_a_list_is_paged_by_an_opaque_cursor(api: Api) -> None:
    """E-31: limit 1..200; a cursor belongs to its route and filters."""
    for id in ("a", "b", "c"):
        api.put(f"/v1/environments/{id}", {"kind": "none", "labels": {"t": "1"}})
    page = api.get("/v1/environments?limit=2&label=t=1").json
    assert [view["id"] for view in page["environments"]] == ["a", "b"]
    rest = api.get(f"/v1/environments?limit=2&label=t=1&cursor={page['nextCursor']}").json
    assert ([view["id"] for view in rest["environments"]], rest["nextCursor"]) == (["c"], None)
    assert api.get(f"/v1/environments?limit=2&cursor={page['nextCursor']}").status == 400
    assert api.get("/v1/environments?cursor=nonsense").status == 400


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "label=", "label=a", "label==b", "what=1"])
def test_a_bad_list_query_is_refused(api: Api, query: str) -> None:
    """E-31, pain 23: every query parameter is checked; never a 500."""
    assert api.get(f"/v1/environments?{query}").status == 400


@pytest.mark.parametrize(
    ("labels", "fits"),
    [
        ({f"k{n}": "v" for n in range(32)}, True),
        ({f"k{n}": "v" for n in range(33)}, False),
        ({"k" * 63: "v"}, True),
        ({"k" * 64: "v"}, False),
        ({"k": "v" * 256}, True),
        ({"k": "v" * 257}, False),
        ({"k": ""}, True),
        ({"": "v"}, False),
        ({"k": "ä"}, False),
        ({"-k": "v"}, False),
        ({"k": 1}, False),
        ({"k": None}, False),
    ],
)
def test_labels_have_bounds(api: Api, labels: dict[str, Any], fits: bool) -> None:
    """E-33: 32 labels, keys of 63, values of 256 printable ASCII characters."""
    answer = api.put(URL, {"kind": "none", "labels": labels})
    assert answer.status == (201 if fits else 400)
    if not fits:
        assert api.get(URL).status == 404
        assert all(problem["path"].startswith("/labels") for problem in answer.json["details"]["problems"])


def test_if_match_guards_a_change(api: Api) -> None:
    """E-302, pain 19: two writes with one ETag: the second is 412 and says the current one."""
    etag = api.put(URL, {"kind": "none"}).headers["ETag"]
    first = api.put(URL, {"labels": {"a": "1"}}, **{"If-Match": etag})
    assert first.status == 200
    second = api.put(URL, {"labels": {"a": "2"}}, **{"If-Match": etag})
    assert (second.status, second.json["code"]) == (412, "precondition_failed")
    assert second.json["details"] == {"etag": first.headers["ETag"]}
    assert api.get(URL).json["labels"] == {"a": "1"}


@pytest.mark.parametrize("verb", ["stop", "reset"])
def test_only_a_pod_is_stopped_or_reset(api: Api, verb: str) -> None:
    """E-98, E-99: other kinds are 400, missing is 404."""
    assert api.post(f"{URL}/{verb}", {}).status == 404
    api.put(URL, {})
    assert api.post(f"{URL}/{verb}", {}).status == 400


def test_pods_are_refused_where_there_is_no_driver(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-21: inline before the transaction, by Manifest inside it; a Manifest may be saved all the same."""
    from environments.api import environments as views
    from environments.services.available import PodsAvailable

    monkeypatch.setattr(views, "pods_available", lambda: PodsAvailable("none", ready=False))
    refused = api.put(URL, {"kind": "pod"})
    assert (refused.status, refused.json["code"]) == (409, "environment_unavailable")
    assert api.put("/v1/environment-manifests/box", {"kind": "pod"}).status == 201
    assert api.put(URL, {"manifest": "box"}).json["code"] == "environment_unavailable"
    monkeypatch.setattr(views, "pods_available", lambda: PodsAvailable("local", ready=False, reason="bwrap"))
    assert api.put(URL, {"kind": "pod"}).headers["Retry-After"] == "5"


def test_a_person_sets_the_guard_only_to_themself(api: Api) -> None:
    """E-163, E-259: set to another person now: 404; otherwise 403; it is never cleared."""
    ada = api.as_subject("ada", "environments:write")
    assert ada.put(URL, {"kind": "none", "ownerUserId": "bob"}).status == 403
    assert ada.put(URL, {"kind": "none", "ownerUserId": "ada"}).status == 201
    assert ada.put(URL, {"ownerUserId": None}).status == 403
    assert api.as_subject("bob", "environments:write").put(URL, {"ownerUserId": "bob"}).status == 404
    assert api.put(URL, {"ownerUserId": "bob"}).json["ownerUserId"] == "bob"

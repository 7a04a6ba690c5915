"""Manifests over HTTP: both names, JSON and YAML, dry runs, lists and refusals."""

import re

import pytest

from environments.models import Environment
from manifests.models import ManifestVersion
from manifests.queries import version_for
from nylorun.db.tx import database_now
from nylorun.kernel.canonical import canonical_hash
from tests.support.client import Api

pytestmark = pytest.mark.django_db

M = "/v1/environment-manifests"
POD = {"kind": "pod", "setup": ["pip install pandas"]}
HASH = "sha256:" + "1b" * 32


def yaml(api, target, text, kind="application/yaml"):
    """A ``PUT`` of YAML."""
    return api.put(target, text.encode() if isinstance(text, str) else text, Content_Type=kind)


def save(api, name, count=1):
    """So many versions of a name."""
    for number in range(count):
        assert api.put(f"{M}/{name}", {"kind": "pod", "setup": [str(number)]}).status == 201


def made_from(version, id):
    """An Environment row of this version."""
    now = database_now()
    Environment.objects.create(
        id=id, kind="none", recipe={}, applied={}, manifest=version, manifest_name=version.manifest_id,
        manifest_version_number=version.number, manifest_hash="", last_used_at=now, created_at=now, updated_at=now,
    )  # fmt: skip


def test_a_save_answers_the_version_it_made(api):
    """E-43, E-39: 201 with everything of the version, and its place."""
    answer = api.put(f"{M}/analyst-box", {**POD, "requestId": "r-1"})
    assert answer.status == 201
    assert answer.headers["Location"] == f"{M}/analyst-box/versions/1"
    body = answer.json
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body.pop("createdAt"))
    assert body == {
        "name": "analyst-box",
        "version": 1,
        "hash": canonical_hash(POD),
        "manifest": POD,
        "savedBy": {"actor": "app-1"},
        "created": True,
    }
    row = ManifestVersion.objects.get()
    assert (row.manifest_id, row.number, row.body, row.saved_by) == ("analyst-box", 1, POD, "app-1")


def test_an_unchanged_save_finds_its_version(api):
    """E-44: 200, ``created: false``, whoever asks; the author stays."""
    first = api.put(f"{M}/box", POD).json
    again = api.as_subject("ada@example.org", "environments:write").put(f"{M}/box", POD)
    assert again.status == 200
    assert again.json == {**first, "created": False}
    assert "Location" not in again.headers


def test_the_subject_is_the_author(api):
    """E-39: the person an application acts for, else the application."""
    person = api.as_subject("ada@example.org", "environments:write")
    assert person.put(f"{M}/box", POD).json["savedBy"] == {"actor": "ada@example.org"}


def test_both_names_are_one_resource(api):
    """E-249: what is saved under one name is read under the other."""
    answer = api.put("/v1/agent-manifests/box", POD)
    assert answer.headers["Location"] == "/v1/agent-manifests/box/versions/1"
    for prefix in (M, "/v1/agent-manifests"):
        assert api.get(f"{prefix}/box").json["version"] == 1
        assert [row["name"] for row in api.get(prefix).json["manifests"]] == ["box"]
    assert api.delete("/v1/agent-manifests/box").json == {"name": "box", "deleted": 1}
    assert api.get(f"{M}/box").status == 404


def test_agent_manifests_are_not_served_under_earlier_protocols(api):
    """E-249: a declared 14 or 15 is refused there, and served here."""
    for protocol in ("14", "15"):
        assert api.get("/v1/agent-manifests", Nylorun_Protocol=protocol).status == 426
        assert api.get(M, Nylorun_Protocol=protocol).status == 200
    assert api.get("/v1/agent-manifests", Nylorun_Protocol="16").status == 200


def test_yaml_and_json_of_one_body_are_one_version(api):
    """E-247: the same schema, the same normal form, the same hash."""
    assert api.put(f"{M}/box", POD).status == 201
    answer = yaml(api, f"{M}/box", "kind: pod\nsetup:\n- pip install pandas\nrequestId: r-1\n")
    assert (answer.status, answer.json["created"]) == (200, False)
    assert yaml(api, f"{M}/box", "kind: pod", "Application/YAML; charset=utf-8").status == 201


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: &a pod\nimage: *a", "anchors"),
        ("kind: !!str pod", "tags"),
        ("kind: pod\nkind: none", "twice"),
        ("a: " + "[" * 2000, "nested"),
        ("{a: b", "YAML"),
        (b"a: \xff", "UTF-8"),
    ],
    ids=["alias", "tag", "duplicate", "deep", "broken", "latin-1"],
)
def test_yaml_that_is_no_plain_document_is_refused(api, text, said):
    """E-247: 400 before the schema is asked."""
    answer = yaml(api, f"{M}/box", text)
    assert answer.status == 400
    assert answer.json["code"] == "invalid_request"
    assert said in answer.json["details"]["problems"][0]["message"]


def test_other_media_types_are_refused(api):
    """E-247: JSON or ``application/yaml``; an empty body needs neither."""
    for kind in ("text/plain", "text/yaml", "application/octet-stream"):
        answer = yaml(api, f"{M}/box", "kind: pod", kind)
        assert (answer.status, answer.json["code"]) == (415, "unsupported_media_type")
    assert api.put(f"{M}/box").json["manifest"] == {}


def test_a_body_that_is_too_large_is_refused(api):
    """E-247: at most 1 MiB, as JSON and as YAML."""
    for kind in ("application/json", "application/yaml"):
        answer = yaml(api, f"{M}/box", b" " * ((1 << 20) + 1), kind)
        assert (answer.status, answer.json["code"]) == (413, "limit_exceeded")


def test_every_problem_of_the_shape_is_told(api):
    """E-47: pointers into the body, one answer."""
    answer = api.put(f"{M}/box", {"kind": "vm", "setup": [""], "lifecycle": {"idle": "0s", "keep": 0}, "x": None})
    assert answer.status == 400
    assert answer.json["code"] == "invalid_request"
    assert [problem["path"] for problem in answer.json["details"]["problems"]] == [
        "/kind",
        "/lifecycle/idle",
        "/lifecycle/keep",
        "/setup/0",
        "/x",
    ]


def test_every_problem_of_the_rules_is_told(api):
    """E-47, E-57: texts joined by one space, and as a list."""
    body = {"image": "x", "files": [{"path": "a", "files": {"b": HASH}}]}
    answer = api.put(f"{M}/box", body)
    problems = [
        "image: kind virtual does not take it, only pod.",
        f"files.0: a/b needs {HASH}, which is not held: send it with PUT /v1/files/{HASH}.",
    ]
    assert answer.status == 400
    assert answer.json == {
        "status": "rejected",
        "code": "request_rejected",
        "message": " ".join(problems),
        "details": {"problems": problems},
    }


@pytest.mark.parametrize("name", ["A", "-a", "a-", "a@1", "a" * 64, "%C3%A4", "a%2Fb", "a%20", "..", "%2e%2e"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_name_follows_its_grammar(api, method, name):
    """E-247: 400 whatever is asked of it."""
    answer = api.request(method, f"{M}/{name}")
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert answer.json["details"]["problems"][0]["path"] == "{name}"


def test_a_dry_run_answers_what_would_come(api):
    """E-45, E-195: 200, every check, and nothing is written."""
    first = api.put(f"{M}/box?dryRun=true", POD)
    assert first.status == 200
    plan = first.json
    assert plan.pop("changes")[-1] == {"field": "setup", "from": None, "to": ["pip install pandas"]}
    assert plan == {"dryRun": True, "version": 1, "hash": canonical_hash(POD), "created": True}
    assert not ManifestVersion.objects.exists()
    api.put(f"{M}/box", POD)
    other = api.put(f"{M}/box?dryRun=1", {"kind": "pod"})
    assert other.json["changes"] == [{"field": "setup", "from": ["pip install pandas"], "to": None}]
    assert (other.json["version"], other.json["created"]) == (2, True)
    same = api.put(f"{M}/box?dryRun=true", POD)
    assert (same.json["version"], same.json["created"], same.json["changes"]) == (1, False, [])
    assert api.put(f"{M}/box?dryRun=true", {"image": "x"}).status == 400
    assert api.put(f"{M}/box?dryRun=false", {"kind": "pod"}).status == 201
    assert ManifestVersion.objects.count() == 2


@pytest.mark.parametrize(
    "query", ["dryRun=yes", "dryRun", "dryRun=true&dryRun=true", "dryrun=true", "x=1", "dryRun=%zz"]
)
def test_query_parameters_are_strict(api, query):
    """E-45: a parameter that is not understood is refused, never ignored."""
    answer = api.put(f"{M}/box?{query}", POD)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert not ManifestVersion.objects.exists()


def test_reading_the_latest_and_any_version(api):
    """E-41: the latest by name, each by its number; unknown is told apart."""
    save(api, "box", 2)
    latest, first = api.get(f"{M}/box"), api.get(f"{M}/box/versions/1")
    assert (latest.status, latest.json["version"], latest.json["manifest"]["setup"]) == (200, 2, ["1"])
    assert (first.status, first.json["version"], first.json["manifest"]["setup"]) == (200, 1, ["0"])
    assert "created" not in latest.json
    assert "environments" not in latest.json
    unknown, missing = api.get(f"{M}/other"), api.get(f"{M}/box/versions/3")
    assert (unknown.status, unknown.json["code"], unknown.json["details"]) == (
        404,
        "manifest_not_found",
        {"name": "other"},
    )
    assert (missing.status, missing.json["details"]) == (404, {"name": "box", "version": 3})
    assert api.get(f"{M}/other/versions/1").json["details"] == {"name": "other"}
    assert api.get(f"{M}/other/versions").json["code"] == "manifest_not_found"


@pytest.mark.parametrize("number", ["0", "-1", "01", "x", "latest", "1.0", "9999999999", "%D9%A1"])
def test_a_version_follows_its_grammar(api, number):
    """E-247: a number from 1."""
    save(api, "box")
    assert api.get(f"{M}/box/versions/{number}").status == 400


def test_head_is_get_without_a_body(api):
    """E-41: the same headers, no bytes."""
    save(api, "box")
    answer = api.head(f"{M}/box")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) == len(api.get(f"{M}/box").body)


def test_lists_show_the_latest_of_each_name_with_its_use(api):
    """E-41, E-42: by name, counted over all versions of it."""
    for name in ("b", "a.x", "a-x", "a"):
        save(api, name, 2)
    for index, reference in enumerate(("b@1", "b@1", "b@2", "a@2")):
        made_from(version_for(reference), f"env-{index}")
    answer = api.get(M)
    assert answer.status == 200
    assert answer.json["nextCursor"] is None
    shown = [(row["name"], row["version"], row["environments"]) for row in answer.json["manifests"]]
    assert shown == [("a", 2, 1), ("a-x", 2, 0), ("a.x", 2, 0), ("b", 2, 3)]
    versions = api.get(f"{M}/b/versions").json["versions"]
    assert [(row["version"], row["environments"]) for row in versions] == [(2, 1), (1, 2)]


def test_lists_are_paged_by_name_and_by_version(api):
    """E-41: every row once, in order; a cursor belongs to its list."""
    for name in ("c", "a", "b"):
        save(api, name)
    save(api, "v", 5)
    first = api.get(f"{M}?limit=2").json
    rest = api.get(f"{M}?limit=2&cursor={first['nextCursor']}").json
    assert [row["name"] for row in first["manifests"] + rest["manifests"]] == ["a", "b", "c", "v"]
    assert rest["nextCursor"] is None
    page = api.get(f"{M}/v/versions?limit=3").json
    tail = api.get(f"{M}/v/versions?cursor={page['nextCursor']}").json
    assert [row["version"] for row in page["versions"] + tail["versions"]] == [5, 4, 3, 2, 1]
    for wrong in (f"{M}?cursor={page['nextCursor']}", f"{M}?cursor=x", f"{M}?limit=0", f"{M}?limit=201", f"{M}?page=1"):
        assert api.get(wrong).status == 400


def test_a_whole_list_is_longer_than_a_page(api):
    """E-41: without a limit everything is listed."""
    save(api, "v", 205)
    versions = api.get(f"{M}/v/versions").json
    assert [row["version"] for row in versions["versions"]] == list(range(205, 0, -1))
    assert versions["nextCursor"] is None


def test_delete_answers_how_many_are_gone(api):
    """E-41: 0 for an unknown name; a used one stays."""
    save(api, "box", 3)
    made_from(version_for("box@2"), "demo")
    answer = api.delete(f"{M}/box")
    assert (answer.status, answer.json["code"], answer.json["details"]) == (409, "manifest_in_use", {"environments": 1})
    Environment.objects.all().delete()
    assert api.delete(f"{M}/box").json == {"name": "box", "deleted": 3}
    assert api.delete(f"{M}/box").json == {"name": "box", "deleted": 0}
    assert api.put(f"{M}/box", POD).json["version"] == 1


def test_who_may_do_what(api):
    """E-43: people read with a scope of theirs, save and delete with one for changes, strangers see nothing."""
    save(api, "box")
    reader = api.as_subject("ada", "sessions:own")
    assert reader.get(f"{M}/box").status == reader.get(M).status == 200
    for answer in (reader.put(f"{M}/box", POD), reader.delete(f"{M}/box")):
        assert (answer.status, answer.json["code"]) == (403, "scope_required")
        assert answer.json["details"] == {"scopes": ["environments:write"]}
    assert api.as_subject("ada", "vaults:own").get(M).status == 403
    for answer in (Api().get(M), Api().put(f"{M}/box", POD), Api().delete(f"{M}/box")):
        assert (answer.status, answer.json["code"]) == (404, "not_found")
    assert ManifestVersion.objects.count() == 1


def test_other_methods_are_told_the_right_ones(api):
    """E-43: 405 with ``Allow``."""
    answer = api.post(f"{M}/box", POD)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, PUT, DELETE")
    assert api.put(M, POD).headers["Allow"] == "GET, HEAD"


def test_the_json_schema_needs_no_credential():
    """E-247: served to everybody, whatever protocol is declared."""
    answer = Api().get("/v1/schemas/environment-manifest.json", Nylorun_Protocol="1")
    assert answer.status == 200
    assert answer.json["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert answer.json["properties"]["kind"]["enum"] == ["virtual", "pod", "none"]

"""Names and the automaton's facts that no database is needed for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from environments.commands import INLINE_FIELDS
from environments.models import Environment
from manifests.schema import FIELDS
from nylorun.kernel.ids import POD_NAME, is_id, pod_name, ulid


@pytest.mark.parametrize(
    ("tenant", "id", "generation", "name"),
    [
        ("shop", "sbx_01", 0, "sbx-ub6g5m7mvjlct6r7-g0"),
        ("local", "team-a/proj-42", 0, "sbx-adxho3ky73rxcj7v-g0"),
        ("local", "demo", 1, "sbx-om34eesle27pgzj5-g1"),
    ],
)
def test_pod_names_have_their_test_values(tenant: str, id: str, generation: int, name: str) -> None:
    """E-101: a DNS label from a hash of Tenant and id, one per generation."""
    assert pod_name(tenant, id, generation) == name
    assert POD_NAME.fullmatch(name)


def test_the_inline_fields_are_ten_in_their_order() -> None:
    """E-06: the list of messages and of the Manifest body is one."""
    assert INLINE_FIELDS == FIELDS
    assert len(INLINE_FIELDS) == 10


def test_a_row_has_every_fence_and_no_expiry() -> None:
    """E-93, E-95: nothing but deleteAfter ends an Environment by time."""
    columns = {field.name for field in Environment._meta.get_fields()}
    fences = {
        "rev",
        "uid",
        "host_epoch",
        "pod_uid",
        "volume_gen",
        "k8s_name",
        "volume_id",
        "join_token_hash",
        "retiring",
    }
    assert fences <= columns
    assert not [name for name in columns if "expir" in name or "ttl" in name]


def test_ulids_sort_by_time_and_fit_their_grammar() -> None:
    """Crockford base 32, lower case, 26 characters."""
    early = ulid("op", datetime(2030, 1, 1, tzinfo=UTC), lambda count: b"\xff" * count)
    late = ulid("op", datetime(2030, 1, 1, 0, 0, 1, tzinfo=UTC), lambda count: b"\x00" * count)
    assert early < late
    assert len(early) == 29
    assert not set(early[3:]) & set("ilou")


@pytest.mark.parametrize("id", ["a", "A.b_c-d", "a/b/c", "0", "x" * 200])
def test_ids_that_fit(id: str) -> None:
    """E-32."""
    assert is_id(id)


@pytest.mark.parametrize(
    "id", ["", "/", "a/", "/a", "a//b", "-a", "a/-b", ".", "..", "a/../b", "a b", "é", "x" * 201, "a\n"]
)
def test_ids_that_do_not(id: str) -> None:
    """E-32."""
    assert not is_id(id)

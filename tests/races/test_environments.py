"""Several callers at one moment: real connections, a barrier, no waiting by the clock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from environments.commands import PutEnvironment
from environments.errors import EnvironmentBusy
from environments.models import Environment
from environments.services.delete import delete_environment
from environments.services.put import put_environment
from environments.services.stop import stop_environment
from nylorun.kernel.errors import ApiError
from nylorun.record.models import Event
from nylorun.tenant.models import TenantLock
from tests.factories import CALLER, FAKE_PODS, environment

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(acts: list[Callable[[], Any]]) -> list[Any]:
    """Run every act in a thread of its own, begun together; results, or the refusals they raised."""
    barrier = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = acts[index]()
        except ApiError as refusal:
            results[index] = refusal
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def put(id: str, **inline: Any) -> Callable[[], Any]:
    return lambda: put_environment(PutEnvironment(id, inline=inline), caller=CALLER, pods=FAKE_PODS, tenant="local")


def test_fifty_parallel_puts_of_one_id_make_one_row_and_one_event() -> None:
    """E-18: a lost race is answered as found."""
    results = at_once([put("demo", kind="none") for _ in range(50)])
    assert Counter(result.created for result in results) == {True: 1, False: 49}
    assert Environment.objects.count() == 1
    assert list(Event.objects.values_list("type", flat=True)) == ["created"]
    assert TenantLock.objects.get(name="environments.create").amount == 1


def test_the_limit_holds_against_parallel_creates(db: Any) -> None:
    """E-18: creates are serialised with each other: exactly as many as fit."""
    from manifests.services.sandbox import put_sandbox

    put_sandbox({"limits": {"environments": 3}}, actor="app-1")
    results = at_once([put(f"e{number}", kind="none") for number in range(8)])
    assert sum(not isinstance(result, ApiError) for result in results) == 3
    assert Environment.objects.count() == 3


def test_parallel_deletes_delete_once() -> None:
    """E-34: one says deleted, the others say it was not there."""
    environment("demo", kind="none")
    results = at_once([lambda: delete_environment("demo", force=False) for _ in range(8)])
    assert Counter(results) == {True: 1, False: 7}
    assert TenantLock.objects.get(name="environments.create").amount == 0


def test_put_against_delete_ends_in_one_of_both_orders() -> None:
    """E-17, E-279: never half a row; a new row has a new uid and an unbroken stream."""
    for _ in range(10):
        old = environment("demo", kind="none")
        at_once([put("demo", kind="none"), lambda: delete_environment("demo", force=False)])
        row = Environment.objects.filter(pk="demo").first()
        if row is not None:
            assert row.created_at.isoformat() >= old["createdAt"][:19]
            delete_environment("demo", force=True)
        numbers = list(Event.objects.filter(stream="demo").order_by("seq").values_list("seq", flat=True))
        assert numbers == list(range(len(numbers)))


def test_stop_against_delete_leaves_no_event_after_deleted() -> None:
    """E-142: both are decided under the row's lock."""
    for number in range(6):
        id = f"pod-{number}"
        environment(id, kind="pod")
        at_once([lambda id=id: stop_environment(id), lambda id=id: delete_environment(id, force=False)])  # type: ignore[misc]
        types = list(Event.objects.filter(stream=id).order_by("seq").values_list("type", flat=True))
        assert types[-1] == "deleted"
        assert types.count("deleted") == 1
    assert issubclass(EnvironmentBusy, ApiError)

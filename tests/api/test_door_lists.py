"""Lists, preconditions, ranges, waits: what several routes share."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from nylorun import config
from nylorun.http.etag import check_if_match, etag_of
from nylorun.http.prefer import Prefer, idempotency_key, prefer_of
from nylorun.http.ranges import RANGE_MAX, Span, raw_answer, wanted_span
from nylorun.http.waiting import room, waiting
from nylorun.kernel.errors import InvalidRequest, PreconditionFailed, RangeNotSatisfiable, ServiceUnavailable
from tests.api.door_urls import Numbers
from tests.support.client import Api

NUMBERS = "/v1/test/numbers"


@pytest.fixture(autouse=True)
def door_routes(settings: Any, db: Any) -> None:
    settings.ROOT_URLCONF = "tests.api.door_urls"
    Numbers.reads.clear()


def cursor_of(target: str) -> str:
    cursor = Api().get(target).json["nextCursor"]
    assert isinstance(cursor, str)
    return cursor


# --- paging


def test_without_a_limit_the_whole_list_is_written_in_pages() -> None:
    """E-31: paging is opt-in; a list is read and written 200 rows at a time."""
    answer = Api().get(NUMBERS)
    chunks = list(answer.chunks())
    assert len(chunks) > 1
    answer._body = b"".join(chunks)
    assert answer.json == {"numbers": list(range(450)), "nextCursor": None}
    assert Numbers.reads == [(None, 200), ([199], 200), ([399], 200)]


def test_pages_follow_each_other_to_the_end() -> None:
    """E-31: the pages are the list, without a gap and without a row twice."""
    seen, target = [], f"{NUMBERS}?limit=100"
    sizes = []
    while True:
        page = Api().get(target).json
        sizes.append(len(page["numbers"]))
        seen += page["numbers"]
        if page["nextCursor"] is None:
            break
        target = f"{NUMBERS}?limit=100&cursor={page['nextCursor']}"
    assert (seen, sizes) == (list(range(450)), [100, 100, 100, 100, 50])


def test_a_cursor_alone_means_fifty_rows() -> None:
    """E-31: cursor without limit = 50."""
    cursor = cursor_of(f"{NUMBERS}?limit=1")
    assert Api().get(f"{NUMBERS}?cursor={cursor}").json["numbers"] == list(range(1, 51))


def test_a_last_page_that_is_exactly_full_has_no_cursor() -> None:
    """E-31: nextCursor is null when nothing follows."""
    cursor = cursor_of(f"{NUMBERS}?limit=150")
    second = Api().get(f"{NUMBERS}?limit=150&cursor={cursor}").json["nextCursor"]
    last = Api().get(f"{NUMBERS}?limit=150&cursor={second}").json
    assert (last["numbers"][-1], len(last["numbers"]), last["nextCursor"]) == (449, 150, None)


def test_pages_are_filled_from_the_rows_in_reach() -> None:
    """E-30, E-31: rows out of reach are left out silently and do not make a page shorter."""
    page = Api().get(f"{NUMBERS}?deep=1&limit=10").json
    assert page["numbers"] == list(range(0, 20, 2))
    following = Api().get(f"{NUMBERS}?deep=true&limit=10&cursor={page['nextCursor']}").json
    assert following["numbers"] == list(range(20, 40, 2))
    assert Api().get(f"{NUMBERS}?deep=1").json["numbers"] == list(range(0, 450, 2))


@pytest.mark.parametrize("limit", ["0", "201", "-1", "x", ""])
def test_a_limit_is_1_to_200(limit: str) -> None:
    """E-31: limit 1..200."""
    answer = Api().get(f"{NUMBERS}?limit={limit}")
    assert (answer.status, answer.json["details"]["problems"][0]["path"]) == (400, "?limit")


def test_a_cursor_belongs_to_its_route_and_filters() -> None:
    """E-31: opaque and bound to route and filters; the order of repeated filters does not matter."""
    bound = cursor_of(f"{NUMBERS}?limit=5&label=a=1&label=b=2")
    assert Api().get(f"{NUMBERS}?label=b=2&label=a=1&cursor={bound}").status == 200
    others = ["?", "?label=a=1&", "?label=a=1&label=b=2&deep=1&", "?label=a=1&label=b=2&label=c=3&"]
    targets = [f"{NUMBERS}{other}cursor={bound}" for other in others]
    targets.append(f"/v1/test/odd?label=a=1&label=b=2&cursor={bound}")
    for target in targets:
        answer = Api().get(target)
        assert (answer.status, answer.json["code"]) == (400, "invalid_request")
        assert answer.json["details"]["problems"] == [
            {"path": "?cursor", "message": "must be a cursor of this list and these filters"}
        ]


@pytest.mark.parametrize("cursor", ["x", "AAAA", "%C3%A9", "A" * 4000, "~~~", "==", "a+b/", "null", "W10"])
def test_a_malformed_cursor_is_400(cursor: str) -> None:
    """E-31: a cursor nobody gave out is refused, and so is one with a bit changed."""
    assert Api().get(f"{NUMBERS}?cursor={cursor}").status == 400


def test_a_changed_cursor_is_400() -> None:
    """E-31: whatever is changed in a cursor ends it."""
    cursor = cursor_of(f"{NUMBERS}?limit=5")
    for place in range(0, len(cursor), 3):
        changed = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        assert Api().get(f"{NUMBERS}?cursor={changed}").status == 400


# --- preconditions


def test_if_match_passes_only_the_tag_of_the_row() -> None:
    """E-302: If-Match is the view's ETag, or a list that holds it, or *."""
    tag = etag_of({"labels": {"a": "1"}, "owner": None})
    assert tag == etag_of({"labels": {"a": "1"}})
    assert tag != etag_of({"labels": {"a": "2"}})
    for header in (None, tag, f'"x", {tag}', "*"):
        check_if_match(header, tag)
    for header in ('"x"', f"W/{tag}"):
        with pytest.raises(PreconditionFailed) as refused:
            check_if_match(header, tag)
        assert refused.value.details == {"etag": tag}
    with pytest.raises(PreconditionFailed):
        check_if_match("*", None)
    for header in ("", "x", '"x', '"x" "y"', '"x",'):
        with pytest.raises(InvalidRequest):
            check_if_match(header, tag)


# --- ranges


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-4", (2, 5)),
        ("bytes=8-", (8, 10)),
        ("bytes=8-99", (8, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        ("Bytes= 1 - 2 ", (1, 3)),
        (f"bytes=8-{10**19}", (8, 10)),
        (f"bytes=8-{'9' * 200}", (8, 10)),
        (f"bytes=-{'9' * 200}", (0, 10)),
        (f"bytes={'0' * 30}1-2", (1, 3)),
    ],
)
def test_one_range_is_cut_out(header: str, span: tuple[int, int]) -> None:
    """E-292: one bytes= range of raw content."""
    assert wanted_span(header, 10) == Span(*span, 10)


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "bytes=", "bytes=-", "bytes=4-2", "bytes=0-1,3-4", "lines=0-1", "bytes=a-b", "bytes=1", "0-1"),
        f"bytes={10**30}-{10**30 - 1}",
        f"bytes=8-{'9' * RANGE_MAX}",
        f"bytes=8-{'9' * 5000}",
    ],
)
def test_another_range_means_the_whole(header: str | None) -> None:
    """RFC 9110 §14.2: what is no single range, or far too long for one, is ignored."""
    assert wanted_span(header, 10) is None


@pytest.mark.parametrize(
    ("header", "size"),
    [
        *(("bytes=10-", 10), ("bytes=99-100", 10), ("bytes=-0", 10), ("bytes=0-", 0)),
        (f"bytes={10**19}-", 10),
        (f"bytes={'9' * 100}-{'9' * 101}", 10),
        (f"bytes=-{'0' * 100}", 10),
    ],
)
def test_a_range_outside_the_content_is_416(header: str, size: int) -> None:
    """E-292: the refusal tells the size."""
    with pytest.raises(RangeNotSatisfiable) as refused:
        wanted_span(header, size)
    assert refused.value.details == {"size": size}


def test_raw_content_never_runs_as_a_page() -> None:
    """E-292: nosniff, a sandboxing policy and attachment go with every raw answer."""
    answer = raw_answer([b"<script>"], length=8, name='a"b\r\n.html', content_type="text/html")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''a%22b%0D%0A.html"
    assert (answer.status_code, answer.headers["Content-Length"]) == (200, "8")
    part = raw_answer([b"cd"], length=10, span=Span(2, 4, 10), name="a.txt")
    assert (part.status_code, part.headers["Content-Range"], part.headers["Content-Length"]) == (
        206,
        "bytes 2-3/10",
        "2",
    )
    assert part.headers["Content-Disposition"] == 'attachment; filename="a.txt"'


# --- waits and keys


@pytest.mark.parametrize(
    ("header", "prefer"),
    [
        (None, Prefer()),
        ("wait=5", Prefer(5, "wait=5")),
        ('wait = "7"', Prefer(7, "wait=7")),
        ("wait=600", Prefer(60, "wait=60")),
        ("wait=5, respond-async", Prefer(0, "respond-async")),
        ("Respond-Async; x=1", Prefer(0, "respond-async")),
        ("return=minimal, wait=0", Prefer(0, "wait=0")),
        ("wait=-1", Prefer()),
        ("wait=x", Prefer()),
        (",;=", Prefer()),
    ],
)
def test_prefer_is_read_or_ignored(header: str | None, prefer: Prefer) -> None:
    """E-225: respond-async wins, larger waits count as 60 s, what is unreadable is ignored."""
    assert prefer_of(header) == prefer


def test_an_idempotency_key_is_one_thing_in_two_places() -> None:
    """E-233: header and member are the same thing; both and different is refused."""
    assert [idempotency_key(*both) for both in ((None, None), ("k", None), (None, "k"), ("k", "k"))] == [
        None,
        "k",
        "k",
        "k",
    ]
    for header, member in (("k", "l"), ("", None), ("a b", None), ("é", None), ("x" * 257, None)):
        with pytest.raises(InvalidRequest):
            idempotency_key(header, member)


def test_at_most_half_of_the_threads_wait() -> None:
    """E-295: above the number of waiting calls the next one is refused at once; a place that is left is free again."""
    places = config.current().waiting_calls
    entered, leave = threading.Barrier(places + 1), threading.Event()

    def wait() -> None:
        with waiting():
            entered.wait(10)
            leave.wait(10)

    threads = [threading.Thread(target=wait) for _ in range(places)]
    for thread in threads:
        thread.start()
    try:
        entered.wait(10)
        with pytest.raises(ServiceUnavailable) as refused, waiting():
            pass
        assert refused.value.retry_after == 5
    finally:
        leave.set()
        for thread in threads:
            thread.join(10)
    assert room.waiting == 0
    with waiting():
        assert room.waiting == 1


@pytest.mark.django_db(transaction=True)
def test_a_wait_holds_no_database_connection() -> None:
    """E-295: the connection goes back when the wait begins, and is taken again by the next statement."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    with waiting():
        assert connection.connection is None
        with connection.cursor() as cursor:
            cursor.execute("SELECT 2")
            assert cursor.fetchone() == (2,)

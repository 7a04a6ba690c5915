"""Refusals as events: one a minute each, sixty an hour, the rest in one."""

from uuid import UUID

from vault.gate.doorkeeper import Refused, Whose
from vault.gate.refusals import Refusals

DEMO, OTHER = Whose("demo", UUID(int=1)), Whose("other", UUID(int=2))
START = 1000.0


def short(events):
    return [(one.host, one.port, one.reason, one.count) for one in events]


def test_the_first_is_an_event_at_once_and_the_rest_are_counted():
    """E-197: at most one event per host, port and reason in 60 s, with a count."""
    refusals = Refusals()
    assert short(refusals.note(DEMO, "a.org", 443, "not_allowed", START)) == [("a.org", 443, "not_allowed", 1)]
    for second in range(1, 60):
        assert refusals.note(DEMO, "a.org", 443, "not_allowed", START + second) == []
        assert refusals.due(START + second) == []
    assert short(refusals.due(START + 60)) == [("a.org", 443, "not_allowed", 59)]
    assert refusals.due(START + 119) == []
    assert refusals.due(START + 200) == []


def test_a_refusal_after_the_minute_brings_those_before_it():
    """E-197: nothing counted is lost when no look came between."""
    refusals = Refusals()
    refusals.note(DEMO, "a.org", 443, "host", START)
    refusals.note(DEMO, "a.org", 443, "host", START + 1)
    assert short(refusals.note(DEMO, "a.org", 443, "host", START + 61)) == [("a.org", 443, "host", 2)]


def test_hosts_ports_reasons_and_environments_count_apart():
    """E-197: each host, port and reason of each Environment is an event of its own."""
    refusals = Refusals()
    for whose, host, port, reason in (
        (DEMO, "a.org", 443, "not_allowed"), (DEMO, "a.org", 80, "not_allowed"), (DEMO, "b.org", 443, "not_allowed"),
        (DEMO, "a.org", 443, "limit"), (DEMO, "a.org", 443, None), (OTHER, "a.org", 443, "not_allowed"),
    ):  # fmt: skip
        assert [one.whose for one in refusals.note(whose, host, port, reason, START)] == [whose]


def test_sixty_events_an_hour_and_the_rest_in_one():
    """E-197: what is beyond EGRESS_EVENTS is one event an hour with host * and the count."""
    refusals = Refusals()
    recorded = []
    for number in range(1000):
        recorded += refusals.note(DEMO, f"h{number}.org", 443, "not_allowed", START + number)
        recorded += refusals.due(START + number)
    assert len(recorded) == 60
    assert {one.host for one in recorded} == {f"h{number}.org" for number in range(60)}
    assert refusals.due(START + 3599) == []
    assert short(refusals.due(START + 3600)) == [("*", None, None, 940)]
    assert short(refusals.note(DEMO, "a.org", 443, "host", START + 3601)) == [("a.org", 443, "host", 1)]


def test_every_refusal_is_counted_once():
    """E-197: over hours of a busy sandbox the counts add up, and no hour holds more than 61 events."""
    refusals = Refusals()
    recorded = []
    for step in range(5000):
        now = START + step * 3
        fresh = refusals.note(DEMO, f"h{step % 97}.org", 443, "not_allowed", now) + refusals.due(now)
        recorded += [(now, one) for one in fresh]
    recorded += [(START + 15000, one) for one in refusals.all(START + 15000)]
    assert sum(one.count for _, one in recorded) == 5000
    for hour in range(4):
        inside = [one for at, one in recorded if START + hour * 3600 < at < START + (hour + 1) * 3600]
        assert len([one for one in inside if one.host != "*"]) <= 60
    assert len(refusals) == 0


def test_what_is_held_is_bounded_and_forgotten():
    """E-197: a sandbox cannot fill the gate's memory either."""
    refusals = Refusals()
    for number in range(10_000):
        refusals.note(DEMO, f"h{number}.org", 443, "not_allowed", START)
    assert len(refusals._records[DEMO].windows) == 60
    refusals.due(START + 61)
    assert len(refusals._records[DEMO].windows) == 0
    refusals.due(START + 3600)
    assert len(refusals) == 0


def test_the_payload_leaves_out_what_it_does_not_have():
    """E-197: {host, port?, allowed: false, reason?, count}."""
    assert Refused(DEMO, "*", None, None, 7).payload() == {"host": "*", "allowed": False, "count": 7}
    assert Refused(DEMO, "a.org", 22, "port", 1).payload() == {
        "host": "a.org", "port": 22, "allowed": False, "reason": "port", "count": 1,
    }  # fmt: skip

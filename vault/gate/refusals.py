"""Thins refusals into events, so that a sandbox cannot fill the record. Pure: time is an argument, in seconds.

Per Environment:

* The first refusal of a host, port and reason is an event at once. What follows within 60 s is counted, and is one
  event when they are over: at most one per 60 s.
* At most ``EGRESS_EVENTS`` such events in an hour, counted from the first. What is beyond is counted too, and is one
  event with host ``*`` at the hour's end.
* What is held is bounded by the events of an hour; an Environment that is quiet for an hour is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vault.gate.doorkeeper import Reason, Refused, Whose
from vault.gate.limits import EGRESS_EVENTS

WINDOW = 60.0
HOUR = 3600.0

_Key = tuple[str, int | None, Reason | None]


@dataclass(slots=True)
class _Window:
    """One host, port and reason: when its last event was, and what came since."""

    since: float
    count: int = 0


@dataclass(slots=True)
class _Record:
    """One Environment in its hour."""

    since: float
    events: int = 0
    beyond: int = 0
    windows: dict[_Key, _Window] = field(default_factory=dict)


class Refusals:
    """Of all Environments of one gate."""

    def __init__(self, most: int = EGRESS_EVENTS) -> None:
        self._most = most
        self._records: dict[Whose, _Record] = {}

    def __len__(self) -> int:
        """How many Environments are held."""
        return len(self._records)

    def note(self, whose: Whose, host: str, port: int | None, reason: Reason | None, now: float) -> list[Refused]:
        """Count one refusal; the events to record now."""
        events = self._turned(whose, now)
        record = self._records.setdefault(whose, _Record(now))
        window = record.windows.get((host, port, reason))
        if window is not None and now < window.since + WINDOW:
            window.count += 1
            return events
        count = 1 if window is None else window.count + 1
        return events + self._event(whose, record, (host, port, reason), count, now)

    def due(self, now: float) -> list[Refused]:
        """The events whose minute or hour is over."""
        events: list[Refused] = []
        for whose in list(self._records):
            events += self._turned(whose, now)
            record = self._records.get(whose)
            if record is not None:
                events += self._over(whose, record, now)
        return events

    def all(self, now: float) -> list[Refused]:
        """Everything that is still counted, for a gate that stops; nothing is held afterwards."""
        events: list[Refused] = []
        for whose, record in self._records.items():
            for key in list(record.windows):
                events += self._close(whose, record, key, now)
            events += _beyond(whose, record)
        self._records.clear()
        return events

    def _over(self, whose: Whose, record: _Record, now: float) -> list[Refused]:
        over = [key for key, window in record.windows.items() if now >= window.since + WINDOW]
        return [event for key in over for event in self._close(whose, record, key, now)]

    def _close(self, whose: Whose, record: _Record, key: _Key, now: float) -> list[Refused]:
        window = record.windows.pop(key)
        return self._event(whose, record, key, window.count, now) if window.count else []

    def _event(self, whose: Whose, record: _Record, key: _Key, count: int, now: float) -> list[Refused]:
        if record.events >= self._most:
            record.windows.pop(key, None)
            record.beyond += count
            return []
        record.events += 1
        record.windows[key] = _Window(now)
        return [Refused(whose, *key, count)]

    def _turned(self, whose: Whose, now: float) -> list[Refused]:
        """Begin the next hour when this one is over: windows that still count go on in it."""
        record = self._records.get(whose)
        if record is None or now < record.since + HOUR:
            return []
        events = _beyond(whose, record)
        record.since, record.events, record.beyond = now, 0, 0
        events += self._over(whose, record, now)
        if not record.windows and not record.events:
            del self._records[whose]
        return events


def _beyond(whose: Whose, record: _Record) -> list[Refused]:
    return [Refused(whose, "*", None, None, record.beyond)] if record.beyond else []

"""What every test may use: an API client with a key, a clock that can be moved, and the scripted Driver."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections

from environments.compute.fake import FakeDriver
from environments.compute.registry import registry
from nylorun import config
from nylorun.db.tx import Clock
from nylorun.record.outbox import HandOver, Message
from tests.support.client import Api
from tests.support.virtual import engine, served  # noqa: F401 fixtures

# A request made inside a test shares the test's transaction: its connection is not closed around the request.
request_started.disconnect(close_old_connections)
request_finished.disconnect(close_old_connections)


@pytest.fixture
def api(db: Any) -> Api:
    """The whole application behind its WSGI door, with an application key."""
    return Api.for_application("app-1")


@pytest.fixture
def handed() -> Iterator[list[Message]]:
    """Messages that commits handed over; no broker is asked."""
    before, messages = HandOver.send, []
    HandOver.send = staticmethod(messages.append)
    yield messages
    HandOver.send = before


@pytest.fixture(autouse=True)
def no_broker(request: pytest.FixtureRequest) -> Iterator[None]:
    """Commits hand nothing to a broker unless a test is about that."""
    if "live" in request.keywords:
        yield
        return
    before = HandOver.send
    HandOver.send = staticmethod(lambda message: None)
    yield
    HandOver.send = before


class MovedClock:
    """The database's clock, moved by as much as the test says."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def __call__(self, moment: datetime) -> datetime:
        return moment + self.offset

    def advance(self, **parts: float) -> None:
        """Let this much time pass."""
        self.offset += timedelta(**parts)


@pytest.fixture
def clock() -> Iterator[MovedClock]:
    """Time that passes when the test says so."""
    moved, before = MovedClock(), Clock.of
    Clock.of = staticmethod(moved)
    yield moved
    Clock.of = before


@pytest.fixture
def pods(db: Any) -> Iterator[FakeDriver]:
    """The scripted Driver that this installation is configured with."""
    from nylorun.tenant.store import installation_id

    registry.forget()
    settings = config.current()
    driver = registry.driver("fake", settings.data_dir, installation_id())
    assert isinstance(driver, FakeDriver)
    yield driver
    registry.forget()

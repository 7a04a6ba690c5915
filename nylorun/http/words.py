"""Route words: what a route asks of the one who calls, decided from the route alone before any row is read.

Every route states its word; the table of what each word lets is in :mod:`nylorun.http.caller`.
"""

from __future__ import annotations

from enum import Enum


class Word(Enum):
    """One word of the endpoint list. ``PUBLIC`` needs no credential; ``ENGINE`` routes check their own token."""

    PUBLIC = "public"
    ANY = "any"
    READ = "read"
    WRITE = "write"
    PUBLISH = "publish"
    SECRET = "secret"  # noqa: S105 a route word, no password
    OWN = "own"
    AGENTS = "agents"
    APP = "app"
    ENGINE = "engine"


PUBLIC = Word.PUBLIC
ANY = Word.ANY
READ = Word.READ
WRITE = Word.WRITE
PUBLISH = Word.PUBLISH
SECRET = Word.SECRET
OWN = Word.OWN
AGENTS = Word.AGENTS
APP = Word.APP
ENGINE = Word.ENGINE

UNAUTHENTICATED = frozenset({PUBLIC, ENGINE})
"""Words whose routes the door opens without a Caller."""

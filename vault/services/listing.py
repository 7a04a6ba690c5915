"""What may be known of Secrets without opening one. Nothing here locks, writes or decrypts.

Every function takes the ``uid`` of an Environment row; the host Vault has none and is thus never met here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from nylorun.kernel.clock import iso
from vault.bindings import HIDDEN, hosts_of, variable_problem
from vault.models import Secret

PLACEHOLDER = "nylorun-managed"
"""What a sandbox sees in the variable of a hidden Secret."""
SEALED_COLUMNS = ("kek_id", "nonce", "wrapped_dek", "ciphertext")


@dataclass(frozen=True, slots=True)
class BoundSecret:
    """A hidden Secret without its value: what the gate must know to let a request pass. ``hosts`` are its binding's."""

    id: UUID
    name: str
    type: str
    binding: dict[str, Any]
    hosts: tuple[str, ...]
    headers: frozenset[str]
    """Every header it sets, lower-cased: removed from what a sandbox sends."""


def info(row: Secret) -> dict[str, Any]:
    """A Secret as callers see it: the binding and the names of headers, never a value."""
    shown: dict[str, Any] = {"name": row.name, **row.binding}
    if row.header_names is not None:
        shown["headerNames"] = row.header_names
    shown["createdAt"] = iso(row.created_at)
    if row.rotated_at is not None:
        shown["rotatedAt"] = iso(row.rotated_at)
    return shown


def list_secrets(environment_uid: UUID) -> list[dict[str, Any]]:
    """Every Secret, by creation time, then id."""
    return [info(row) for row in Secret.objects.of(environment_uid).defer(*SEALED_COLUMNS)]


def secret_names(environment_uid: UUID) -> frozenset[str]:
    """Names that hold a value now."""
    return frozenset(Secret.objects.of(environment_uid).values_list("name", flat=True))


def secret_names_of_many(environment_uids: Iterable[UUID]) -> dict[UUID, set[str]]:
    """Names that hold a value now, by Environment, in one query."""
    names: dict[UUID, set[str]] = defaultdict(set)
    uids = list(environment_uids)
    rows = Secret.objects.filter(vault__environment_uid__in=uids) if uids else Secret.objects.none()
    for uid, name in rows.values_list("vault__environment_uid", "name"):
        if uid is not None:
            names[uid].add(name)
    return names


def variable_names(environment_uid: UUID) -> list[str]:
    """Names of the Secrets that a sandbox sees as variables, sorted."""
    rows = Secret.objects.of(environment_uid).filter(type="environment_variable")
    return sorted(rows.values_list("name", flat=True))


def placeholder_names(environment_uid: UUID) -> list[str]:
    """Names of hidden Secrets that a sandbox sees as variables with :data:`PLACEHOLDER`, sorted."""
    names = Secret.objects.of(environment_uid).filter(type__in=HIDDEN).values_list("name", flat=True)
    return sorted(name for name in names if variable_problem(name) is None)


def bound_to(environment_uid: UUID) -> list[BoundSecret]:
    """The hidden Secrets, by creation: names, bindings, hosts and headers, without values."""
    rows = Secret.objects.of(environment_uid).filter(type__in=HIDDEN).defer(*SEALED_COLUMNS)
    return [
        BoundSecret(row.id, row.name, row.type, row.binding, tuple(hosts_of(row.binding)), row.bound.headers())
        for row in rows
    ]

"""Reading and writing the Tenant's rows: settings by name, counters under their lock, the installation's id.

The caller holds the lock it names; nothing here opens a transaction of its own.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from django.db.models import F

from nylorun.db.locks import Rank
from nylorun.db.tx import Tx
from nylorun.kernel.ids import new_uid
from nylorun.tenant.models import Installation, TenantLock, TenantSetting

ENVIRONMENTS_CREATE = "environments.create"
ARTIFACTS_QUOTA = "artifacts.quota"
ARTIFACTS_LIMITS = "artifacts.limits"
SANDBOX_CONFIG = "sandbox.config"


def setting(name: str) -> Any | None:
    """The document stored under ``name`` now, or ``None`` when it was never set."""
    return TenantSetting.objects.filter(name=name).values_list("value", flat=True).first()


def locked_setting(tx: Tx, name: str) -> Any | None:
    """The same, holding its row (or, when absent, nothing) until the commit."""
    row = tx.hold(Rank.EFFECT, TenantSetting.objects.filter(name=name), name)
    return None if row is None else row.value


def write_setting(name: str, value: Any, *, now: datetime, actor: str) -> None:
    """Replace the document; the caller validated it and holds its lock."""
    TenantSetting.objects.update_or_create(name=name, defaults={"value": value, "updated_at": now, "updated_by": actor})


def hold_environment_count(tx: Tx) -> int:
    """Take the lock that serialises every create; returns the number of live Environments."""
    return _hold_amount(tx, Rank.ENVIRONMENTS_CREATE, ENVIRONMENTS_CREATE)


def change_environment_count(by: int) -> None:
    """Add ``by`` to the number of live Environments; the caller holds its lock."""
    _change_amount(ENVIRONMENTS_CREATE, by)


def hold_artifact_quota(tx: Tx) -> int:
    """Take the lock of the Tenant's byte total; returns the bytes of all stored content, each content once."""
    return _hold_amount(tx, Rank.ARTIFACTS_QUOTA, ARTIFACTS_QUOTA)


def change_artifact_bytes(by: int) -> None:
    """Add ``by`` to the Tenant's byte total; the caller holds its lock."""
    _change_amount(ARTIFACTS_QUOTA, by)


def artifact_bytes() -> int:
    """The Tenant's byte total at this moment, without its lock: to show, never to decide."""
    return TenantLock.objects.filter(name=ARTIFACTS_QUOTA).values_list("amount", flat=True).first() or 0


def _hold_amount(tx: Tx, rank: Rank, name: str) -> int:
    rows = TenantLock.objects.filter(name=name)
    row = tx.hold(rank, rows, name)
    if row is None:
        # The first holder in an installation makes the row; of two, one waits here for the other's commit.
        TenantLock.objects.bulk_create([TenantLock(name=name)], ignore_conflicts=True)
        row = rows.select_for_update(no_key=True).get()
    return row.amount


def _change_amount(name: str, by: int) -> None:
    TenantLock.objects.filter(name=name).update(amount=F("amount") + by)


@lru_cache(maxsize=1)
def installation_id() -> str:
    """The id this installation drew when it was first asked for; it never changes."""
    Installation.objects.bulk_create([Installation(id=new_uid())], ignore_conflicts=True)
    return str(Installation.objects.values_list("id", flat=True).get())

"""Whether an Environment can take a call now, read off its row."""

from __future__ import annotations

from environments.models import Environment


def setup_pending(row: Environment) -> bool:
    """Whether files or setup commands of the Recipe still have to run on this volume before the first call."""
    wanted = bool(row.applied.get("setup") or row.applied.get("files"))
    return row.kind == "pod" and wanted and row.setup_done_gen != row.volume_gen


def ready(row: Environment) -> bool:
    """Whether a call may be sent now: the Engine joined, no disk seed waits, setup is done."""
    if row.kind == "virtual":
        return row.disk_seed is None
    return (
        row.desired == "running"
        and row.observed == "running"
        and row.engine_address is not None
        and row.disk_seed is None
        and not setup_pending(row)
    )

"""The generated pages: written from the code, and compared with it by ``make check``.

* ``docs/errors.md``: every code, its status and who can act, from the error classes;
* ``docs/lifecycle.md``: what each command writes and which state follows, from ``environments/lifecycle.py``;
* ``docs/coverage.md``: each rule in scope and the tests that cite its number.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "tests" / "house" / "rules.txt"
APPLICATIONS = ("nylorun", "vault", "manifests", "environments", "workers")


def errors_page() -> str:
    """Every error class that answers a caller."""
    from nylorun.kernel.errors import ApiError, Fault

    _load_everything()
    rows = []
    for kind in sorted(_concrete(ApiError), key=lambda kind: (kind.code, kind.status)):
        who = "retry" if issubclass(kind, Fault) else "caller"
        text = " ".join((kind.__doc__ or "").split())
        rows.append(f"| `{kind.code}` | {kind.status} | {who} | {text} |")
    return "\n".join(
        [
            "# Errors",
            "",
            "Generated from the error classes by `make docs`; compared by `make check`.",
            "",
            '`{"status":"rejected","code":…,"message":…,"details":…}`: programs use `code`, people read `message`.',
            "",
            "| code | status | who acts | when |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _concrete(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        if "code" in vars(child):
            yield child
        yield from _concrete(child)


def _load_everything() -> None:
    for name in APPLICATIONS:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not re.search(
                r"\.(settings|migrations|management|engine|cli|embedded|celery|ready|__main__)\b", module.name
            ):
                importlib.import_module(module.name)


@dataclass
class Pod:
    """A pod's row with only what the automaton reads."""

    desired: str | None
    observed: str | None
    id: str = "demo"
    kind: str = "pod"
    recipe: Any = field(default_factory=dict)
    applied: Any = field(default_factory=dict)
    version: int = 1
    disk_op: Any = None
    rev: int | None = 1
    host_epoch: int | None = 1
    volume_gen: int | None = 0
    k8s_name: str | None = "sbx-x-g0"
    retiring: str | None = None
    last_active_at: datetime | None = None
    created_at: datetime = datetime(2030, 1, 1, tzinfo=UTC)


def lifecycle_page() -> str:
    """The automaton, run for every state and every command."""
    from environments import lifecycle

    now, idle = datetime(2030, 1, 1, tzinfo=UTC), timedelta(minutes=15)
    commands: dict[str, Callable[[Pod], lifecycle.Change]] = {
        "wake": lambda pod: lifecycle.wake(pod, now=now, idle=idle),
        "stop, idle": lambda pod: lifecycle.suspend(pod, "stop"),
        "reset": lambda pod: lifecycle.new_volume(pod, tenant="local", now=now, idle=idle),
        "failure": lambda pod: lifecycle.fail(pod, "reason"),
        "loss": lambda pod: lifecycle.lose(pod, "volume_missing"),
        "delete": lifecycle.delete,
    }
    states = [
        ("running", "creating"), ("running", "running"), ("running", "failed"), ("running", "lost"),
        ("suspended", "running"), ("suspended", "suspended"), ("suspended", "failed"), ("suspended", "lost"),
    ]  # fmt: skip
    rows = []
    for desired, observed in states:
        cells = [_cell(change(Pod(desired, observed)), desired, observed) for change in commands.values()]
        rows.append(f"| {desired} / {observed} | {' | '.join(cells)} |")
    return "\n".join(
        [
            "# Lifecycle of a pod",
            "",
            "Generated from `environments/lifecycle.py` by `make docs`; compared by `make check`.",
            "",
            "A state is *desired / observed*: what requests want, and what was seen. A cell is the state right after",
            "the command's commit, with the fences it moves; what follows is the work of `environments/reconcile.py`.",
            "A cell `-` changes nothing. Refusals (busy, lease, lost, retiring) stand before these writes.",
            "",
            f"| state | {' | '.join(commands)} |",
            f"| --- |{' --- |' * len(commands)}",
            *rows,
            "",
        ]
    )


def _cell(change: Any, desired: str, observed: str) -> str:
    if change.nothing:
        return "-"
    patch = change.patch
    moved = [name for name in ("rev", "host_epoch", "volume_gen") if name in patch]
    fences = f" ({', '.join(moved)})" if moved else ""
    return f"{patch.get('desired', desired)} / {patch.get('observed', observed)}{fences}"


def coverage_page() -> str:
    """Each rule of the list and the tests that cite it; a rule that is not built yet says so."""
    cited = citations()
    rows, missing = [], []
    for line in RULES.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        number, scope, text = line.split("\t")
        tests = cited.get(number, [])
        if scope == "now" and not tests:
            missing.append(number)
        shown = "<br>".join(tests[:6]) + (f"<br>and {len(tests) - 6} more" if len(tests) > 6 else "")
        rows.append(f"| {number} | {text} | {shown or ('**none**' if scope == 'now' else 'with ' + scope)} |")
    if missing:
        raise SystemExit(f"rules without a test: {', '.join(missing)}")
    return "\n".join(
        [
            "# Coverage of the rules",
            "",
            "Generated by `make docs`; compared by `make check`, which fails when a rule in scope has no test.",
            "",
            "| rule | what it says | tests |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def citations() -> dict[str, list[str]]:
    """Rule number -> names of the tests whose docstring cites it."""
    cited: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for number in sorted(set(re.findall(r"E-\d+", ast.get_docstring(node) or ""))):
                    cited.setdefault(number, []).append(f"{path.relative_to(ROOT / 'tests')}: {node.name}")
    return cited


PAGES: dict[str, Callable[[], str]] = {
    "docs/errors.md": errors_page,
    "docs/lifecycle.md": lifecycle_page,
    "docs/coverage.md": coverage_page,
}


def main(arguments: list[str]) -> int:
    """Write or compare; the number of pages that differ."""
    django.setup()
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if "--write" in arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    if stale:
        print(f"stale: {', '.join(stale)}: run make docs")
    return len(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""From what was asked to what runs: the rules of a Manifest body under the Tenant's settings. Pure.

* :func:`resolve` gives the Recipe or raises :class:`RecipeProblems` with **all** problems; :func:`problems_of` and
  :func:`composed` are its two halves, for callers that show problems together with others.
* A Recipe always has ``harness`` and ``lifecycle``; ``resources`` with both members for ``virtual`` and ``pod``; other
  members only when they apply. Members equal to a fixed default are left out, so that sending one and leaving it out
  give the same Recipe. The defaults of ``image`` and ``storage`` belong to the start and are no part of it.
* Requests are in the normal form of :func:`manifests.schema.normal`, without ``kind``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from manifests.settings import NYLORUN, Effective, mib
from nylorun.kernel import durations
from nylorun.kernel.canonical import same
from nylorun.kernel.errors import Problem
from vault.bindings import Bound, binding_of, clash_with, hosts_of, name_problem
from vault.hosts import covered, is_pattern

POD: Final = frozenset({"pod"})
MACHINE: Final = frozenset({"pod", "virtual"})
_KINDS_OF_FIELD: Final = {
    "image": POD, "storage": POD, "setup": POD, "resources": MACHINE, "network": MACHINE, "files": MACHINE,
}  # fmt: skip
_KINDS_OF_LIFECYCLE: Final = {"idle": POD, "onLost": POD, "snapshot": POD, "keep": MACHINE}
_LIFECYCLE_DEFAULTS: Final = {"onLost": "refuse", "snapshot": "never"}


@dataclass(frozen=True, slots=True)
class RecipeProblem:
    """A rule that a field breaks. As text: ``<field>: <text>.``"""

    field: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{'.'.join(self.field)}: {self.text}."

    def pointed(self) -> Problem:
        """The same as a problem of the body."""
        pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in self.field)
        return {"path": pointer, "message": self.text}


class RecipeProblems(Exception):
    """A body that cannot run under these settings: every problem, in the order of the rules."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


def resolve(kind: str, request: Mapping[str, Any], effective: Effective) -> dict[str, Any]:
    """The Recipe of a request, or :class:`RecipeProblems` with every problem."""
    problems = problems_of(kind, request, effective)
    if problems:
        raise RecipeProblems([str(problem) for problem in problems])
    return composed(kind, request, effective)


def composed(kind: str, request: Mapping[str, Any], effective: Effective) -> dict[str, Any]:
    """The Recipe of a request without problems."""
    recipe = {name: value for name, value in request.items() if name != "kind"}
    recipe["harness"] = request.get("harness", NYLORUN)
    recipe["lifecycle"] = {
        name: value
        for name, value in request.get("lifecycle", {}).items()
        if _LIFECYCLE_DEFAULTS.get(name) != value
    }  # fmt: skip
    if recipe.get("network") == {}:
        del recipe["network"]
    if kind in MACHINE:
        defaults = {"cpus": effective.default_cpus, "memory": effective.default_memory}
        recipe["resources"] = {**defaults, **request.get("resources", {})}
    return recipe


def problems_of(kind: str, request: Mapping[str, Any], effective: Effective) -> list[RecipeProblem]:
    """Every rule the request breaks."""
    rules = (_kind, _harness, _network, _resources, _lifecycle, _slots)
    return [problem for rule in rules for problem in rule(kind, request, effective)]


def inline_overlay(recipe: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """The request of an inline ``PUT`` on an existing row: the fields sent over its Recipe, whose storage stays."""
    request = {**recipe, **sent}
    request.pop("kind", None)
    request.pop("storage", None)
    return {**request, "storage": recipe["storage"]} if "storage" in recipe else request


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs from one Recipe to another, by field; ``secrets`` Slot by Slot. Absent shows as ``None``."""
    before, after = _flat(one), _flat(other)
    return [
        {"field": field, "from": before.get(field), "to": after.get(field)}
        for field in sorted(before.keys() | after.keys())
        if not same(before.get(field), after.get(field))
    ]


def _flat(recipe: Mapping[str, Any]) -> dict[str, Any]:
    slots = {f"secrets.{name}": slot for name, slot in recipe.get("secrets", {}).items()}
    return {**{name: value for name, value in recipe.items() if name != "secrets"}, **slots}


def _kind(kind: str, request: Mapping[str, Any], effective: Effective) -> Iterator[RecipeProblem]:
    for name, kinds in _KINDS_OF_FIELD.items():
        if name in request and kind not in kinds:
            yield RecipeProblem((name,), _wrong_kind(kind, kinds))
    for name, kinds in _KINDS_OF_LIFECYCLE.items():
        if name in request.get("lifecycle", {}) and kind not in kinds:
            yield RecipeProblem(("lifecycle", name), _wrong_kind(kind, kinds))
    if kind == "virtual":
        for host in filter(is_pattern, _allowed(request)):
            yield RecipeProblem(("network", "allow"), f"{host} is a pattern, kind virtual takes exact hosts")


def _harness(kind: str, request: Mapping[str, Any], effective: Effective) -> Iterator[RecipeProblem]:
    harness = request.get("harness", NYLORUN)
    if harness not in effective.harnesses:
        known = ", ".join(effective.harnesses)
        yield RecipeProblem(("harness",), f"{harness} is not registered, known are {known}")
    elif kind != "pod" and harness != NYLORUN:
        yield RecipeProblem(("harness",), f"kind {kind} takes {NYLORUN} only")


def _network(kind: str, request: Mapping[str, Any], effective: Effective) -> Iterator[RecipeProblem]:
    if effective.network is None or kind not in MACHINE:
        return
    for host in _allowed(request):
        if not covered(host, effective.network):
            yield RecipeProblem(("network", "allow"), f"{host} is outside the Tenant's limits.network")


def _resources(kind: str, request: Mapping[str, Any], effective: Effective) -> Iterator[RecipeProblem]:
    if kind not in MACHINE:
        return
    resources = composed(kind, request, effective)["resources"]
    if resources["cpus"] > effective.cpus:
        yield RecipeProblem(("resources", "cpus"), f"{resources['cpus']} is more than the limit {effective.cpus}")
    if mib(resources["memory"]) > effective.memory_mib:
        text = f"{resources['memory']} is more than the limit {effective.memory_mib}MiB"
        yield RecipeProblem(("resources", "memory"), text)


def _lifecycle(kind: str, request: Mapping[str, Any], effective: Effective) -> Iterator[RecipeProblem]:
    ceilings = {"idle": effective.idle, "deleteAfter": effective.delete_after}
    limits = effective.document["limits"]
    for name, ceiling in ceilings.items():
        asked = request.get("lifecycle", {}).get(name)
        if asked is not None and ceiling is not None and durations.duration(asked) > ceiling:
            yield RecipeProblem(("lifecycle", name), f"{asked} is longer than the limit {limits[name]}")


def _slots(kind: str, request: Mapping[str, Any], effective: Effective) -> Iterator[RecipeProblem]:
    slots: Mapping[str, Any] = request.get("secrets", {})
    bound = [Bound(name, slot["type"], binding_of(slot)) for name, slot in sorted(slots.items())]
    allowed = _allowed(request)
    for index, slot in enumerate(bound):
        for text in _slot(slot, allowed, effective, bound[:index]):
            yield RecipeProblem(("secrets", slot.name), text)


def _slot(slot: Bound, allowed: list[str], effective: Effective, earlier: list[Bound]) -> Iterator[str]:
    name_text = name_problem(slot.name, slot.type)
    if name_text is not None:
        yield f"{slot.name} {name_text}"
    for host in hosts_of(slot.binding):
        if not covered(host, allowed):
            yield f"{host} is not covered by network.allow"
    via = slot.binding.get("via")
    if via is not None and via not in effective.via:
        yield f"{via} is none of the Tenant's limits.via"
    other = clash_with(slot, earlier)
    if other is not None:
        yield f"sets the same header on the same host as {other}"


def _allowed(request: Mapping[str, Any]) -> list[str]:
    return list(request.get("network", {}).get("allow", ()))


def _wrong_kind(kind: str, kinds: frozenset[str]) -> str:
    return f"kind {kind} does not take it, only {' and '.join(sorted(kinds))}"

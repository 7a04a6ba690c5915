"""Names of Manifests and references to their versions: ``name`` or ``name@version``. Pure.

name     ^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?$      version  [1-9][0-9]{0,8}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
VERSION = re.compile(r"[1-9][0-9]{0,8}")


def is_name(text: str) -> bool:
    """Whether a Manifest can have this name."""
    return NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Reference:
    """A Manifest by name, at a version or (``None``) at whatever its latest is when it is looked up."""

    name: str
    version: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``name`` or ``name@version``; raises ``ValueError`` with a few words for people."""
        name, at, version = text.partition("@")
        if not is_name(name) or (at and VERSION.fullmatch(version) is None):
            raise ValueError("must be a Manifest name such as analyst-box, or a name and a version: analyst-box@3")
        return cls(name, int(version) if at else None)

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"

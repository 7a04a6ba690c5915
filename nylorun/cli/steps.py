"""The tour: every step with its name, in order."""

from __future__ import annotations

from collections.abc import Callable

from nylorun.cli import disk_steps, secret_steps, tour
from nylorun.cli.tour import Tour

STEPS: tuple[tuple[str, Callable[[Tour], str]], ...] = (
    ("save a Manifest", tour.save_manifest),
    ("make a none, a virtual and a pod", tour.make_three),
    ("run commands", tour.run_commands),
    ("write and read files", tour.move_files),
    ("stop", tour.stop),
    ("wake", tour.wake),
    ("a killed pod is made again on its volume", tour.survive_a_kill),
    ("a pod whose volume is gone is found lost", tour.lose_the_volume),
    ("reset", tour.reset),
    ("snapshot", disk_steps.snapshot),
    ("fork onto a new Manifest version", disk_steps.fork),
    ("restore", disk_steps.restore),
    ("a lost volume is recovered", disk_steps.recover),
    ("a Secret is used on the wire, and a fork carries it", secret_steps.on_the_wire),
    ("idle suspend", tour.idle),
    ("deleteAfter sweep", tour.sweep),
    ("delete", tour.delete),
)

"""``manage.py run_egress``: the egress gate, the only way out of a sandbox.

Listens where ``NYLORUN_EGRESS_URL`` says, or on a socket it is given, until SIGTERM or SIGINT; then open tunnels end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.core.management.base import BaseCommand, CommandError

from environments.tools.doorkeeper import Rows
from nylorun import config
from nylorun.access import keyring
from nylorun.http.waiting import release
from nylorun.kernel import clock
from nylorun.kernel.errors import ServiceUnavailable
from nylorun.kernel.sealing import KeyringError
from vault.gate.authority import Authority
from vault.gate.network import real_network
from vault.gate.server import Gate
from vault.services.authority import authority


class Command(BaseCommand):
    help = "Run the egress gate: what sandboxes reach of the network, and where hidden Secrets meet their requests."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Where it listens, and a file that says so once it does."""
        parser.add_argument("--bind", help="HOST:PORT; default: that of NYLORUN_EGRESS_URL")
        parser.add_argument("--fd", type=int, help="number of a bound socket to listen on instead")
        parser.add_argument("--ready-file", type=Path, help="gets this process's number once the gate listens")

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until told to end."""
        listener = _listener(options["bind"]) if options["fd"] is None else socket.socket(fileno=options["fd"])
        try:
            keyring.require_ours()
            key, certificate = authority()
        except (KeyringError, ServiceUnavailable) as error:
            raise CommandError(str(error)) from error
        finally:
            release()
        asyncio.run(_serve(Authority(key, certificate, clock.utc_now), listener, options["ready_file"]))


def _listener(bind: str | None) -> socket.socket:
    try:
        url = urlsplit(config.current().egress_url if bind is None else f"http://{bind}")
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise CommandError("Say where to listen: --bind HOST:PORT, or NYLORUN_EGRESS_URL with a port.")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise CommandError(f"The gate cannot listen on {host}:{port}: {error.strerror}.") from error


async def _serve(signer: Authority, listener: socket.socket, ready: Path | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    rows = Rows()
    gate = Gate(rows, signer, real_network(), clock=clock.monotonic)
    await gate.listen_on(listener)
    watching = asyncio.create_task(gate.watch())
    if ready is not None:
        ready.write_text(f"{os.getpid()}\n")
    await ended.wait()
    watching.cancel()
    await gate.stop()
    rows.close()

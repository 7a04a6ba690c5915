"""A workspace with a way out: the real Engine, the real gate with scripted rows, real servers behind it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.compute.virtual.support import Workspace
from tests.gate.sites import Certificates, Site, site
from tests.gate.support import TOKEN, World

ELSEWHERE = "198.41.0.4"


class Out:
    """A workspace with a way out, the gate it leads to, and servers beyond it."""

    def __init__(self, workspace: Workspace, world: World, closing: ExitStack) -> None:
        self.workspace = workspace
        self.world = world
        self._closing = closing

    def egress(self, token: str = TOKEN) -> dict[str, str]:
        trusted = self.world.authority.decode() + self.world.certificates._certificate.decode()
        return {"gate": f"http://127.0.0.1:{self.world.port}", "token": token, "trusted": trusted}

    def serve(self, host: str, address: str, port: int = 443, certificates: Certificates | None = None) -> Site:
        """A real server behind a name; with TLS on any port but 80."""
        context = None if port == 80 else (certificates or self.world.certificates).server(host)
        made = self._closing.enter_context(site(context))
        self.world.internet.names[host] = [[address]]
        self.world.internet.servers[address, port] = made.port
        return made

    def bash(self, command: str, token: str = TOKEN, **options: Any) -> dict[str, object]:
        return self.workspace.bash(command, egress=self.egress(token), **options)

    def sh(self, command: str, **options: Any) -> str:
        """What a command prints that must succeed."""
        output = self.bash(command, **options)
        assert (output["exitCode"], output["stderr"]) == (0, ""), output
        return str(output["stdout"])

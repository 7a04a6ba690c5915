"""A Secret on the wire, with everything real but the internet: rows, tokens, gate, forwarder, pod, an HTTPS server.

The Environment's row is of the scripted Driver; the pod that uses its token is a local one, so that programs of a
sandbox meet the gate as they do in production.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.compute.fake import FakeDriver
from environments.compute.local.driver import LocalDriver
from environments.models import Environment
from environments.tools.doorkeeper import Rows
from nylorun.access import signing
from nylorun.db.tx import database_now
from nylorun.kernel.clock import utc_now
from nylorun.record.models import Event
from tests.compute.local.helpers import INSTALLATION, NAME, Client, ControlPlane, joined, own_pods, spec
from tests.gate.sites import Certificates, Site, site
from tests.gate.support import HOST, OTHER, PUBLIC, Internet
from tests.support.client import Api
from tests.support.platform import eventually
from tests.vault.helpers import PLAIN, put, uses
from tests.workers.test_pods import join
from vault.gate.addresses import is_public
from vault.gate.authority import Authority
from vault.gate.limits import Limits
from vault.gate.network import Network
from vault.gate.server import Gate
from vault.services import authority
from workers.steps import pods as step

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/v1/environments/demo"
RECIPE = {"kind": "pod", "network": {"allow": ["*.example.org"]}}


class Running:
    """A gate on a loop of its own, over this installation's rows."""

    def __init__(self) -> None:
        self.internet, self.certificates = Internet(), Certificates()
        network = Network(self.internet.resolve, is_public, self.internet.connect, self.certificates.trust())
        key, certificate = authority.authority()
        self._rows, self._loop = Rows(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.gate = Gate(
            self._rows, Authority(key, certificate, utc_now), network, clock=self._loop.time, limits=Limits(poll=0.05)
        )
        self.url = f"http://127.0.0.1:{self._run(self.gate.listen('127.0.0.1', 0))}"
        self._watch = asyncio.run_coroutine_threadsafe(self.gate.watch(), self._loop)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self._watch.cancel()
        self._run(self.gate.stop())
        self._rows.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def running(api: Api, pods: FakeDriver) -> Iterator[Running]:
    """The Environment ``demo``, running, and the gate."""
    assert api.put(URL, RECIPE).status == 201
    step.reconcile_pod("demo")
    assert join(api, pods).status == 200
    gate = Running()
    yield gate
    gate.close()


@pytest.fixture
def site_of(running: Running) -> Iterator[Callable[[str], Site]]:
    """Real servers behind names."""
    opened: list[Any] = []

    def made(host: str, address: str = PUBLIC) -> Site:
        running.internet.names[host] = [[address]]
        opened.append(site(running.certificates.server(host)))
        server = opened[-1].__enter__()
        running.internet.servers[address, 443] = server.port
        return server  # type: ignore[no-any-return]

    yield made
    for one in opened:
        one.__exit__(None, None, None)


def token() -> str:
    """What the pod's Engine got at its join."""
    row = Environment.objects.get(pk="demo")
    claims = {"epc": row.host_epoch, "pod": row.pod_uid}
    return signing.mint(signing.EGRESS, "demo", claims, ttl=signing.TOLERANCE * 20, now=database_now())


@pytest.fixture
def pod(running: Running, tmp_path: Path) -> Iterator[Client]:
    """A local pod whose forwarder leads to the gate with the Environment's token."""
    plane = ControlPlane()
    real, shown = plane.answer, token()
    plane.answer = lambda *of: (real(*of)[0], {**real(*of)[1], "egressToken": shown})  # type: ignore[method-assign]
    driver = LocalDriver(tmp_path / "pods", INSTALLATION)
    trusted = authority.certificate() + running.certificates._certificate.decode()
    with own_pods(driver, NAME):
        driver.apply(spec(plane.url, network=("*.example.org",), egress_url=running.url, egress_ca=trusted))
        yield joined(driver, plane)
    plane.close()


def refusals() -> list[dict[str, Any]]:
    return list(Event.objects.filter(type="egress").order_by("seq").values_list("payload", flat=True))


def test_the_server_sees_the_secret_and_the_sandbox_never_does(
    api: Api, running: Running, pod: Client, site_of: Callable[[str], Site]
) -> None:
    """E-265, E-74, E-73, pain 5: the header is set on the wire; env, processes, files and answers do not hold it."""
    real = site_of(HOST)
    put(api, "API_KEY", {"type": "bearer", "url": f"https://{HOST}/v1", "value": PLAIN})
    said = pod.sh(
        f"curl -sS -H 'Authorization: Bearer mine' https://{HOST}/v1/ok -D - && curl -sS https://{HOST}/v2/ok"
    )
    assert "200" in said
    assert real.seen[0].all("Authorization") == [f"Bearer {PLAIN}"]
    assert real.seen[1].all("Authorization") == [], "another path"
    assert uses() == [("approved", "API_KEY", HOST)] * 2
    first, second = PLAIN[:6], PLAIN[6:]  # the search itself must not hold what it looks for
    seen = pod.sh(
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; "
        f"grep -rl '{first}''{second}' /workspace /tmp /run /harness /dev/shm 2>/dev/null; true"
    )
    assert PLAIN not in said + seen
    assert "/workspace" not in seen.splitlines()[-1]


def test_a_redirect_carries_nothing_and_a_rotation_reaches_the_next_tunnel(
    api: Api, running: Running, pod: Client, site_of: Callable[[str], Site]
) -> None:
    """E-265, E-71: a new value is used without a restart; another host gets no header."""
    real, other = site_of(HOST), site_of(OTHER, "198.41.0.4")
    secret = {
        "type": "environment_secret",
        "allowedHosts": [HOST],
        "inject": {"header": "X-Key", "format": "k {value}"},
    }
    put(api, "KEY", {**secret, "value": PLAIN})
    pod.sh(f"curl -sS -L https://{HOST}/redirect")
    put(api, "KEY", {**secret, "value": "rotated"})
    pod.sh(f"curl -sS https://{HOST}/ok")
    assert [seen.all("X-Key") for seen in real.seen] == [[f"k {PLAIN}"], ["k rotated"]]
    assert [(seen.path, seen.all("X-Key")) for seen in other.seen] == [("/taken", [])]


def test_what_is_refused_is_told_and_recorded_once(api: Api, running: Running, pod: Client) -> None:
    """E-197, E-304: host, address, port, a name inside this network; one event each with a count."""
    running.internet.names["inside.example.org"] = [["127.0.0.1"]]
    running.internet.names["metadata.example.org"] = [["169.254.169.254"]]
    said = pod.sh(
        "for url in https://example.com/ https://10.0.0.1/ https://a.example.org:8443/ https://inside.example.org/ "
        "https://metadata.example.org/ https://example.com/; do curl -sS $url 2>&1 | tail -1; done"
    )
    assert said.count("403") == 6
    eventually(lambda: len(refusals()) >= 5, within=10, what="the refusals are recorded")
    seen = {(one["host"], one["reason"]) for one in refusals()}
    assert seen >= {
        ("example.com", "not_allowed"),
        ("10.0.0.1", "address"),
        ("a.example.org", "port"),
        ("inside.example.org", "not_public"),
        ("metadata.example.org", "not_public"),
    }


def test_the_tenants_ceiling_of_now_applies(
    api: Api, running: Running, pod: Client, site_of: Callable[[str], Site]
) -> None:
    """E-304: an operator closes a host for running Environments at once."""
    site_of(OTHER)
    assert pod.sh(f"curl -sS -o /dev/null -w '%{{http_code}}' https://{OTHER}/ok") == "200"
    assert api.put("/v1/tenant/sandbox", {"limits": {"network": ["*.example.com"]}}).status == 200
    assert "403" in pod.sh(f"curl -sS https://{OTHER}/ok 2>&1 || true")


def test_a_stopped_pods_tunnels_end_and_its_token_is_over(
    api: Api, running: Running, pod: Client, site_of: Callable[[str], Site]
) -> None:
    """E-111, E-156: what was open is closed by the next look, what is asked is refused with reason ``token``."""
    site_of(OTHER)
    asked = f"printf 'CONNECT {OTHER}:443 HTTP/1.1\\r\\nHost: {OTHER}\\r\\n\\r\\n' >&3"
    call = f"exec 3<>/dev/tcp/127.0.0.1/3128; {asked}; head -c 12 <&3; cat <&3 | wc -c"
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(pod.bash(call).text))
    thread.start()
    eventually(lambda: running.gate.tunnels == 1, within=10, what="the tunnel is open")
    assert api.post(f"{URL}/stop").status == 200
    thread.join(20)
    assert not thread.is_alive()
    assert seen[0].startswith("HTTP/1.1 200")
    assert "403" in pod.sh(f"curl -sS https://{OTHER}/ok 2>&1 || true")

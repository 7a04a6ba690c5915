"""Gateways in place of the origin: only those an operator allows, looked at again at each request."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.gate.sites import Site, site
from tests.gate.support import HOST, PUBLIC, World, bearer, closed, send


@pytest.fixture
def gateway() -> Iterator[Site]:
    """A plain HTTP server on this machine, as an operator's gateway may be."""
    with site() as made:
        yield made


@pytest.fixture
def via(world: World, gateway: Site) -> str:
    """Its URL, allowed, with a Secret that goes there below ``/v1``."""
    url = f"http://127.0.0.1:{gateway.port}/base"
    world.internet.servers["127.0.0.1", gateway.port] = gateway.port
    world.rows.vias = {url}
    world.rows.secrets = [bearer(url=f"https://{HOST}/v1", via=url)]
    return url


def test_a_via_is_honoured(world: World, gateway: Site, via: str):
    """E-265: the request goes there instead of to the origin and base path; the origin is not even resolved."""
    assert world.get("/v1/chat?x=y", "Authorization: mine").status == 200
    assert gateway.last.path == "/base/chat?x=y"
    assert gateway.last.all("Host") == [f"127.0.0.1:{gateway.port}"]
    assert gateway.last.all("Authorization") == ["Bearer s3cret"]
    assert world.internet.asked == []


def test_off_its_path_the_origin_answers(world: World, gateway: Site, api_site: Site, via: str):
    """E-265: within one tunnel, each request to where it belongs."""
    with world.secure() as made:
        assert send(made, "GET", "/v1/a").status == 200
        assert send(made, "GET", "/v2/b").status == 200
        assert send(made, "GET", "/v1/c").status == 200
    assert [seen.path for seen in gateway.seen] == ["/base/a", "/base/c"]
    assert [(seen.path, seen.all("Authorization")) for seen in api_site.seen] == [("/v2/b", [])]


def test_a_withdrawn_via_is_refused_at_the_next_request(world: World, gateway: Site, api_site: Site, via: str):
    """E-265, E-291: limits.via of now, in an open tunnel too; the Secret goes neither there nor to the origin."""
    with world.secure() as made:
        assert send(made, "GET", "/v1/a").status == 200
        world.rows.vias.clear()
        answer = send(made, "GET", "/v1/b")
        assert (answer.status, json.loads(answer.body)["reason"]) == (403, "not_allowed")
        assert closed(made)
    assert len(gateway.seen) == 1
    assert api_site.seen == []
    assert world.rows.refusals() == [(HOST, 443, "not_allowed", 1)]


def test_a_via_that_was_never_allowed(world: World, gateway: Site, via: str):
    """E-265: a Manifest or a Secret write alone opens nothing of the gate's own network."""
    world.rows.vias = {"http://127.0.0.1:1/base"}
    assert world.get("/v1/a").status == 403
    assert gateway.seen == []
    assert world.internet.dialled == []


def test_an_https_via_is_verified_under_its_own_name(world: World):
    """E-265: inside the operator's network, which no rule of addresses closes to an operator."""
    name = "gateway.internal.example"
    url = f"https://{name}:8443"
    world.rows.vias, world.rows.secrets = {url}, [bearer(via=url)]
    world.internet.names[name] = [["10.0.0.7"]]
    with site(world.certificates.server(name)) as good, site(world.certificates.server(HOST)) as wrong:
        world.internet.servers["10.0.0.7", 8443] = good.port
        assert world.get("/x").status == 200
        assert good.last.all("Host") == [f"{name}:8443"]
        world.internet.servers["10.0.0.7", 8443] = wrong.port
        assert world.get("/x").status == 502
        assert wrong.seen == []
    assert PUBLIC not in str(world.internet.dialled)

"""Certificates of the installation's own authority."""

import ssl
from datetime import timedelta

import pytest
from cryptography import x509

from nylorun.kernel.clock import utc_now
from vault.gate.authority import Authority, new_authority


class Clock:
    def __init__(self):
        self.now = utc_now()

    def __call__(self):
        return self.now


def shaken(server, client, name):
    """Both sides of a handshake in memory; the client's object, and the certificate it was shown."""
    one, two = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(one, two, server_hostname=name), server.wrap_bio(two, one, server_side=True)]
    waiting = sides
    for _ in range(5):
        left = []
        for side in waiting:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                left.append(side)
        waiting = left
    assert not waiting
    return sides[0], x509.load_der_x509_certificate(sides[0].getpeercert(binary_form=True))


@pytest.fixture
def made():
    clock = Clock()
    key, certificate = new_authority(clock.now)
    client = ssl.create_default_context(cadata=certificate.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    return clock, Authority(key, certificate, clock), client


@pytest.mark.parametrize("host", ["api.example.org", ".".join(["a" * 60] * 4)])
def test_a_leaf_is_good_for_its_host_and_no_other(made, host):
    """E-265: strict clients take it for its host, whatever the name's length, and for nothing else."""
    _, authority, client = made
    _, leaf = shaken(authority.context(host), client, host)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [host]
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc <= timedelta(hours=25)
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(authority.context(host), client, "other.example.org")


def test_only_http_1_1_is_agreed_on(made):
    """E-265: a client that would rather speak HTTP/2 gets HTTP/1.1."""
    _, authority, client = made
    client.set_alpn_protocols(["h2", "http/1.1"])
    side, _ = shaken(authority.context("api.example.org"), client, "api.example.org")
    assert side.selected_alpn_protocol() == "http/1.1"


def test_contexts_are_kept_for_half_a_life(made):
    """E-265: the same leaf within 12 h, a new one after, and only so many hosts at once."""
    clock, authority, _ = made
    first = authority.context("a.example.org")
    clock.now += timedelta(hours=11)
    assert authority.context("a.example.org") is first
    clock.now += timedelta(hours=2)
    assert authority.context("a.example.org") is not first
    for number in range(600):
        authority._contexts[f"h{number}.org"] = (clock.now + timedelta(hours=1), first)
    authority.context("b.example.org")
    assert len(authority._contexts) == 512


def test_a_leaf_is_no_authority(made):
    """E-265: nothing below it is trusted; the authority itself signs leaves only."""
    _, authority, client = made
    _, leaf = shaken(authority.context("api.example.org"), client, "api.example.org")
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority._certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert "key" not in repr(authority).lower()

"""The installation's own certificate authority, which sandboxes trust: a leaf certificate for each bound host.

* The authority's key is handed in and stays in this process. Leaves hold a P-256 key each, live a day and are made anew
  after half of it; contexts are kept for the hosts used last.
* A context serves TLS 1.2 and 1.3, HTTP/1.1 alone, and no session tickets: each handshake names its host.
"""

from __future__ import annotations

import os
import ssl
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LEAF_LIFE = timedelta(days=1)
_SKEW = timedelta(hours=1)
_KEPT = 512
_NAME = "nylorun egress"


class Authority:
    """Makes and keeps the server's side of TLS for bound hosts."""

    def __init__(self, key_pem: bytes, certificate_pem: bytes, now: Callable[[], datetime]) -> None:
        """``now`` is a wall clock with a timezone. Raises ``ValueError`` for what is no P-256 authority."""
        key = load_pem_private_key(key_pem, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority needs an elliptic key")  # noqa: TRY004 a wrong value, whatever its class
        self._key, self._now = key, now
        self._certificate = x509.load_pem_x509_certificate(certificate_pem)
        self._contexts: OrderedDict[str, tuple[datetime, ssl.SSLContext]] = OrderedDict()

    def __repr__(self) -> str:
        return "<Authority>"

    def context(self, host: str) -> ssl.SSLContext:
        """The context to accept a handshake for ``host`` with."""
        now = self._now()
        kept = self._contexts.get(host)
        if kept is None or now >= kept[0]:
            kept = (now + _LEAF_LIFE / 2, self._made(host, now))
            self._contexts[host] = kept
        self._contexts.move_to_end(host)
        while len(self._contexts) > _KEPT:
            self._contexts.popitem(last=False)
        return kept[1]

    def _made(self, host: str, now: datetime) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(_NAME), self._certificate.subject, key.public_key(), now, _LEAF_LIFE)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(_key_id_of(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        _load(context, _pem(key) + certificate.public_bytes(Encoding.PEM))
        return context


def new_authority(now: datetime, *, days: int = 3650) -> tuple[bytes, bytes]:
    """A new authority: its key and its certificate, PEM. The key is the caller's to seal."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{_NAME} authority")
    certificate = (
        _builder(name, name, key.public_key(), now, timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, SHA256())
    )
    return _pem(key), certificate.public_bytes(Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_id_of(key: ec.EllipticCurvePublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Python takes keys from files only; this one never touches a disk."""
    handle = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)

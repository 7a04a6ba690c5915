"""Opening one sealed value beside the bare calls of ``cryptography`` that it cannot do without."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nylorun.kernel.canonical import canonical
from nylorun.kernel.sealing import Keyring
from tests.bench.load import p50, timed
from vault.values import Value

ROUNDS, EACH = 200, 20
KEY = bytes(range(32))
PLACE = {"vaultId": "v", "credentialId": "c", "name": "API_KEY", "type": "environment_variable", "binding": {}}


def sealed(bench: Any) -> None:
    """The median of many rounds of both in turn, a call each."""
    ring = Keyring([KEY], "bench")
    kept = ring.seal(Value.of_text("s3cret-value").plaintext(), PLACE)
    aad = canonical(PLACE).encode()

    def opened() -> None:
        for _ in range(EACH):
            Value.of_plaintext(ring.open_sealed(kept, PLACE))

    def bare() -> None:
        for _ in range(EACH):
            wrapping = AESGCM(HKDF(SHA256(), 32, None, b"nylorun/vault/1/bench").derive(KEY))
            data_key = wrapping.decrypt(kept.wrapped_dek[:12], kept.wrapped_dek[12:], None)
            AESGCM(data_key).decrypt(kept.nonce, kept.ciphertext, aad)

    pairs = [(timed(bare), timed(opened)) for _ in range(ROUNDS)]
    floor, value = p50([one for one, _ in pairs]), p50([one for _, one in pairs])
    bench.note("vault: open one Secret, p50", value / EACH, floor=floor / EACH, bar=3)

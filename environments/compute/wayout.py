"""The variables by which programs in a sandbox find the egress gate and trust it. Pure."""

from __future__ import annotations

PORT = 3128
"""Of the sandbox's own loopback."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
TRUSTING = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO")


def way_out(trusted: str) -> dict[str, str]:
    """The environment of a sandbox whose certificates lie at ``trusted``."""
    proxy = f"http://127.0.0.1:{PORT}"
    local = {"NO_PROXY": "localhost,127.0.0.1,::1", "no_proxy": "localhost,127.0.0.1,::1"}
    return {**dict.fromkeys(PROXIES, proxy), **local, **dict.fromkeys(TRUSTING, trusted)}

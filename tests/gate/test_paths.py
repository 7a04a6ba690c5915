"""At or below a path, in every reading of it."""

import pytest

from vault.gate.paths import is_below, normalised


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v1/x", "/v1/x/y", "/v1/./x", "/v1/x/../y", "/x/../v1/y", "/%761/x", "/v1/a%20b",
     "/v1/group%2Fproject", "/v1//x", "/v1/x;p=1", "/v1/..x", "/v1/x/..", "/./v1"],
)  # fmt: skip
def test_below(path):
    """E-265: the path itself, or below it, once normalised."""
    assert is_below(path, "/v1")


@pytest.mark.parametrize(
    "path",
    ["", "/", "/v1x", "/v", "/V1", "/v1x/y", "/v1/../x", "/v1/..", "/v1/%2e%2e/x", "/v1/%2E./x", "/v1/.%2e/x",
     "/v1/x/../../y", "/v1%2Fx", "/v1%2F..%2Fx", "/v1/..%2Fx", "/v1/%252e%252e/x", "/v1/..%252Fx", "/v1/..;/x",
     "/v1/..;a=b/x", "/v1/..\\x", "/v1\\..\\x", "/v1/..%5Cx", "/v1//../x", "/x//v1", "/v1/%00../x", "/v1/..%00/x",
     "/v1/..%09/x", "/v1%00", "/v1;x", "*", "//v1/../x", "/x/v1"],
)  # fmt: skip
def test_not_below(path):
    """E-265: a path that any server could read as another place goes without the Secret."""
    assert not is_below(path, "/v1")


@pytest.mark.parametrize("path", ["", "/", "/x", "/../x", "/v1/../..", "//", "/%2e%2e/"])
def test_everything_lies_below_no_path(path):
    """E-265: a Secret bound to the host alone is set everywhere."""
    assert is_below(path, "")


def test_a_base_that_needs_escapes():
    """E-265: the same octets in two spellings are one path."""
    assert is_below("/a%20b/c", "/a%20b")
    assert is_below("/%7euser/x", "/~user")
    assert is_below("/a;b/c", "/a;b")
    assert not is_below("/a", "/a%20b")


def test_normalised():
    """E-265: RFC 3986: plain characters unescaped, other escapes upper-cased, dots resolved."""
    assert normalised("/a/./b/../c/%7e/%2f/") == "/a/c/~/%2F/"
    assert normalised("/a/..") == "/"

"""Names of Manifests and references to their versions."""

import pytest

from manifests.references import Reference


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("a", "a", None),
        ("analyst-box", "analyst-box", None),
        ("a.b_c-9@1", "a.b_c-9", 1),
        ("0@999999999", "0", 999_999_999),
        ("a" * 63, "a" * 63, None),
    ],
)
def test_references(text, name, version):
    """E-247: a name, or a name and a version from 1."""
    reference = Reference.parse(text)
    assert reference == Reference(name, version)
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    ["", "@", "@1", "a@", "a@0", "a@01", "a@-1", "a@1.0", "a@latest", "a@1000000000", "a@1@2", "A", "-a", "a-", ".a",
     "a/b",
     "a b", "ä", "a" * 64, "a\n", "a@\u0661"],
)  # fmt: skip
def test_what_is_no_reference_is_refused(text):
    """E-247: nothing else is taken, and nothing is read into it."""
    with pytest.raises(ValueError, match="must be"):
        Reference.parse(text)

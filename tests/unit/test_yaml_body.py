"""Bodies as YAML: one plain document, and nothing a reader could be led astray with."""

import pytest

from manifests.yamlbody import NODES_MAX, parse_yaml
from nylorun.kernel.errors import InvalidRequest


@pytest.mark.parametrize("raw", [b"", b"---\n", b"# nothing\n", b"{}", b"null", b"~"])
def test_an_empty_document_is_an_empty_object(raw):
    """E-247: absent and empty bodies count as ``{}``."""
    assert parse_yaml(raw) == {}


def test_a_manifest_as_people_write_it():
    """E-247: block style, flow style and literal text mean what JSON would."""
    raw = """
kind: pod          # a machine
resources: {cpus: 2, memory: "2GiB"}
setup:
- |
  pip install pandas
  echo 'ä'
files:
  - path: data
    version: 0x10
when: 2010-01-01
words: [yes, no, on, null, True, ~, "true", 012, 1.5, -3, =]
"""
    assert parse_yaml(raw.encode()) == {
        "kind": "pod",
        "resources": {"cpus": 2, "memory": "2GiB"},
        "setup": ["pip install pandas\necho 'ä'\n"],
        "files": [{"path": "data", "version": 16}],
        "when": "2010-01-01",
        "words": ["yes", "no", "on", None, True, None, "true", 12, 1.5, -3, "="],
    }


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"a: &x 1\nb: *x", "anchors"),
        (b"&x {a: 1}", "anchors"),
        (b"a: *x", "anchors"),
        (b"a: !!str 1", "tags"),
        (b"a: ! 1", "tags"),
        (b"!!python/object:os.system {a: 1}", "tags"),
        (b"a: !<tag:example.org,2000:x> 1", "tags"),
        (b"%YAML 1.1\n---\na: 1", "directives"),
        (b"%TAG ! tag:example.org,2000:\n---\na: 1", "directives"),
        (b"a: 1\n---\nb: 1", "one document"),
        (b"a: 1\na: 2", 'the member "a" twice'),
        (b"a: {b: 1, 'b': 2}", 'the member "b" twice'),
        (b"1: a", "with strings"),
        (b"null: a", "with strings"),
        (b"[a]: b", "with strings"),
        (b"{a: b}: c", "with strings"),
        (b"- a", "must be an object"),
        (b"text", "must be an object"),
        (b"3", "must be an object"),
        (b"a: [", "line 1, column 5"),
        (b"a: b: c", "line 1"),
        (b"\ta: b", "line 1"),
        (b"a: \xff", "UTF-8"),
        (b"a: \x00", "is not YAML"),
        (b'a: "\\0"', "U+0000"),
        (b'a: "\\ud800"', "surrogate"),
        (b"a: .inf", "not JSON"),
        (b"a: .nan", "not JSON"),
        (b"a: 1e999", "not JSON"),
        (b"a: 9223372036854775808", "64 bits"),
        (b"a: " + b"9" * 5000, "64 bits"),
        (b"a: " + b"[" * 65 + b"]" * 65, "nested deeper"),
        (b"[" * 5000, "nested deeper"),
        (b"- " * 5000, "nested deeper"),
        (b"{a: " * 5000, "nested deeper"),
        (b"a: [" + b"1," * (NODES_MAX + 1) + b"]", "nodes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_plain_document_is_refused(raw, said):
    """E-247: no tags, anchors, aliases, duplicate keys, bombs or deep nesting; the answer says why."""
    with pytest.raises(InvalidRequest) as caught:
        parse_yaml(raw)
    assert said in caught.value.problems[0]["message"]


def test_depth_and_size_up_to_the_bound_are_read():
    """E-247: the bounds themselves are inside."""
    deep = parse_yaml(b"a: " + b"[" * 63 + b"]" * 63)
    assert str(deep["a"]).count("[") == 63
    assert len(parse_yaml(b"a: [" + b"1," * (NODES_MAX - 3) + b"]")["a"]) == NODES_MAX - 3

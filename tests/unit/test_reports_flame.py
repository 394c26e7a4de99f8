"""The page as a file: its data block read back by a plain decoder, and what keeps it closed to the outside."""

import base64
import hashlib
import html
import json
import re
import struct
import zlib
from html.parser import HTMLParser

import pytest
import reports_helpers as helpers
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.merge.calltree import CallTree
from perfscope.reports import flame


def varints(data: bytes) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    assert shift == 0
    return values


def unpack(block: bytes) -> tuple[dict, dict[str, list[int]]]:
    data = zlib.decompress(block)
    (length,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + length])
    at, columns = 4 + length, {}
    for name, count, size in header["columns"]:
        values = varints(data[at : at + size])
        assert len(values) == count
        signed = name.startswith(("self:", "tl:"))
        columns[name] = [(v >> 1) ^ -(v & 1) for v in values] if signed else values
        at += size
    assert at == len(data)
    for prefix in ("self:", "tl:"):
        for part in ("cpu", "off-cpu"):
            if prefix + "wall" in columns and prefix + part in columns:
                pairs = zip(columns[prefix + "wall"], columns[prefix + part], strict=True)
                columns[prefix + "wall"] = [a + b for a, b in pairs]
    node = 0
    for row, step in enumerate(columns.get("tl_node", [])):
        node += step
        for name in header["timed"]:
            columns["self:" + name][node] += columns["tl:" + name][row]
    return header, columns


STACKS = st.lists(
    st.builds(
        helpers.Stack,
        st.lists(st.sampled_from([helpers.frame("python", n) for n in "abc"]), min_size=1, max_size=4).map(tuple),
        st.integers(0, 2**50),
        st.integers(0, 2**50),
        st.integers(0, 2**31),
        st.integers(0, 9),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(STACKS)
def test_the_data_block_holds_the_tree_exactly(stacks: list[helpers.Stack]) -> None:
    tree = helpers.build(stacks)
    header, columns = unpack(flame.pack(tree))
    assert [i - d for i, d in enumerate(columns["parent"])] == tree.parent.tolist()
    assert [f - 1 for f in columns["frame"]] == tree.frame.tolist()
    assert [line - 1 for line in columns["line"]] == tree.line.tolist()
    for name, values in tree.weights.items():
        assert columns["self:" + name] == values.tolist()
    assert [tuple(f) for f in header["frames"]] == [tuple(f) for f in tree.frames]
    assert header["edges_ns"] == tree.timeline.edges_ns.tolist()


def test_weights_without_times_and_missing_weights() -> None:
    full = helpers.build(helpers.server())
    tree = CallTree(full.title, full.frames, full.parent, full.frame, full.line, {"samples": full.weights["samples"]})
    header, columns = unpack(flame.pack(tree, "wall"))
    assert (header["weights"], header["timed"], header["weight"]) == (["samples"], [], "samples")
    assert columns["self:samples"] == tree.weights["samples"].tolist()


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def odd_page() -> str:
    return flame.page(helpers.build(helpers.odd(), title="</title><script>alert(1)</script>"))


def test_only_its_own_script_and_style_may_run(odd_page: str) -> None:
    policy = next(a["content"] for t, a in _parsed(odd_page) if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http:" not in policy
    for tag in ("script", "style"):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", odd_page, re.DOTALL)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_names_from_outside_are_in_the_data_alone(odd_page: str) -> None:
    data = re.search(r'id="data">([^<]*)</script>', odd_page)
    assert data is not None
    header, _ = unpack(base64.b64decode(data.group(1), validate=True))
    assert {f[1] for f in header["frames"]} >= set(helpers.ODD_NAMES)
    assert html.escape("</title><script>alert(1)</script>") in odd_page
    assert odd_page.count("alert(1)") == 2  # the title in its two places
    assert [tag for tag, _ in _parsed(odd_page)].count("script") == 2


def test_nothing_is_loaded_from_elsewhere(odd_page: str) -> None:
    for _, attributes in _parsed(odd_page):
        for name in ("src", "href", "action", "srcset", "poster"):
            assert (attributes.get(name) or "data:,").startswith("data:")
    assert "@import" not in odd_page
    assert "url(" not in odd_page


def _parsed(text: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = Reader()
    reader.feed(text)
    return reader.tags

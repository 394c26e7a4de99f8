import json
from collections import Counter

import pytest
import reports_helpers as helpers

from perfscope.reports import speedscope


def read(document: dict, profile: int) -> Counter:
    """Path of names -> weight, by the rules of the file format."""
    names = [f["name"] for f in document["shared"]["frames"]]
    chosen = document["profiles"][profile]
    sums: Counter = Counter()
    for sample, weight in zip(chosen["samples"], chosen["weights"], strict=True):
        sums[tuple(names[f] for f in sample)] += weight
    assert chosen["startValue"] == 0
    assert chosen["endValue"] == sum(chosen["weights"])
    return sums


def expected(stacks: list[helpers.Stack], skip: int = 0, thread: str | None = None) -> Counter:
    sums: Counter = Counter()
    for s in stacks:
        if thread is None or s.frames[1].label == thread:
            sums[tuple(f.label for f in s.frames[skip:])] += s.wall
    return sums


@pytest.mark.parametrize("make", [helpers.server, helpers.odd])
def test_all_threads_and_each_thread_read_back_exactly(make) -> None:
    stacks = make()
    document = json.loads(speedscope.text(helpers.build(stacks), "wall"))
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert read(document, 0) == expected(stacks)
    threads = {s.frames[:2] for s in stacks}
    assert len(document["profiles"]) == 1 + len(threads)
    for process, thread in threads:
        place = [p["name"] for p in document["profiles"]].index(f"{process.label}; {thread.label}")
        assert read(document, place) == expected(stacks, 2, thread.label)


def test_units_and_files() -> None:
    tree = helpers.build(helpers.server())
    times, counts = speedscope.document(tree, "cpu"), speedscope.document(tree, "samples")
    assert {p["unit"] for p in times["profiles"]} == {"nanoseconds"}
    assert {p["unit"] for p in counts["profiles"]} == {"none"}
    assert {"name": "encode", "file": "tokenizer.py"} in times["shared"]["frames"]
    assert {"name": "cblas_sgemm", "file": "libopenblas.so.0"} in times["shared"]["frames"]


def test_the_heaviest_thread_comes_first() -> None:
    document = speedscope.document(helpers.build(helpers.server()), "wall")
    weights = [p["endValue"] for p in document["profiles"][1:]]
    assert weights == sorted(weights, reverse=True)
    assert document["profiles"][0]["endValue"] == sum(weights)


def test_an_empty_tree_is_still_a_valid_file() -> None:
    document = speedscope.document(helpers.build([]), "wall")
    assert document["profiles"][0]["samples"] == []

"""speedscope's file format (https://www.speedscope.app/file-format-schema.json): one sampled profile a thread.

With more than one thread, a first profile holds them all, with processes and threads as frames. The order of samples
is that of the call tree, heaviest thread first, not that of time: the format's "time order" view shows no time here.
"""

from __future__ import annotations

import json
from typing import Any

from perfscope import __version__
from perfscope.merge.calltree import CallTree


def document(tree: CallTree, weight: str) -> dict[str, Any]:
    """The JSON document. Weights are in ns, or plain counts for `samples`. Raises KeyError for an unknown weight."""
    parent, frame = tree.parent.tolist(), tree.frame.tolist()
    values: list[int] = tree.weights[weight].tolist()
    thread_of = [-1] * len(parent)
    by_thread: dict[int, list[int]] = {}
    for node in range(1, len(parent)):
        thread_of[node] = node if tree.frames[frame[node]].layer == "thread" else thread_of[parent[node]]
        if values[node]:
            by_thread.setdefault(thread_of[node], []).append(node)

    def path(node: int, below: int = 0) -> list[int]:
        frames = []
        while node > 0 and node != below:
            frames.append(frame[node])
            node = parent[node]
        return frames[::-1]

    def profile(name: str, nodes: list[int], below: int = 0) -> dict[str, Any]:
        weights = [values[node] for node in nodes]
        return {
            "type": "sampled",
            "name": name,
            "unit": "none" if weight == "samples" else "nanoseconds",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": [path(node, below) for node in nodes],
            "weights": weights,
        }

    threads = sorted(by_thread.items(), key=lambda item: -sum(values[node] for node in item[1]))
    profiles = [
        profile("; ".join(tree.frames[f].label for f in path(thread)) or "no thread", nodes, thread)
        for thread, nodes in threads
    ]
    if len(profiles) != 1:
        every = [node for _, nodes in threads for node in nodes]
        profiles.insert(0, profile(f"all threads ({weight})", every))
    shared = []
    for item in tree.frames:
        entry = {"name": item.label}
        file = item.file or item.module
        if file:
            entry["file"] = file
        shared.append(entry)
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"perfscope@{__version__}",
        "name": tree.title,
        "activeProfileIndex": 0,
        "shared": {"frames": shared},
        "profiles": profiles,
    }


def text(tree: CallTree, weight: str) -> str:
    """`document` as ASCII JSON text."""
    return json.dumps(document(tree, weight), separators=(",", ":"))

"""flame.html: one self-contained page with its own viewer, which a browser opens without any network.

The page is assets/flame.html with the style sheet, the scripts and the data put in. Its content security policy
allows just these (by hash) and forbids every connection. The data is one deflated block in base64, so that no name
from outside ever stands in the page as text, save the title, which is escaped:

    uint32 length of the header | header, JSON | columns, each a run of LEB128 varints

The header lists columns as [name, values, bytes]. Signed columns are zigzag. `parent` is node - parent; `tl_node` is
the difference to the row before; `line` is line + 1. Weights are sparse in information, so they are kept as what is
left after prediction: `wall` minus `cpu` minus `off-cpu`, and a node's self weight minus the sum of its timeline.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import struct
import zlib
from importlib import resources

import numpy as np
import numpy.typing as npt

from perfscope.merge.calltree import WEIGHTS, CallTree
from perfscope.merge.gpu import GPU_IDLE, NO_LAUNCH_STACK
from perfscope.merge.gpu_sync import SPINNING, WAITING
from perfscope.merge.slices import STATE_LABELS, STATES, TORN, UNSAMPLED
from perfscope.reports.units import printable

_SCRIPTS = ("decode.js", "model.js", "canvas.js", "words.js", "timeline.js", "threads.js", "app.js")
_STATES = {label: STATES[code] for code, label in STATE_LABELS.items()} | {
    UNSAMPLED: "unsampled",
    NO_LAUNCH_STACK: "unsampled",
    TORN: "torn",
    GPU_IDLE: "gpu-idle",
    f"{WAITING}]": "gpu-sync",
    f"{SPINNING}]": "gpu-sync",
}
"""Label of a state frame -> the name that its colour goes by in flame.css (`--state-NAME`)."""

_Columns = dict[str, npt.NDArray[np.int64]]


def page(tree: CallTree, *, weight: str | None = None) -> str:
    """The whole page, to be written as UTF-8. `weight` is shown first; default: the tree's first of WEIGHTS."""
    style = _asset("flame.css")
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    parts = {
        "title": html.escape(printable(tree.title)),
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "data": base64.b64encode(pack(tree, weight)).decode("ascii"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], _asset("flame.html"))


def pack(tree: CallTree, weight: str | None = None) -> bytes:
    """The data block: deflated header and columns."""
    names = [name for name in WEIGHTS if name in tree.weights]
    columns: _Columns = {
        "parent": np.arange(len(tree.parent), dtype=np.int64) - tree.parent,
        "frame": tree.frame.astype(np.int64) + 1,
        "line": np.maximum(tree.line, -1).astype(np.int64) + 1,
    }
    timed: list[str] = []
    self_weights = {name: tree.weights[name].astype(np.int64) for name in names}
    timeline = tree.timeline
    if timeline is not None:
        order = np.lexsort((timeline.bucket, timeline.node))
        node = timeline.node[order]
        columns["tl_node"] = np.diff(node, prepend=0).astype(np.int64)
        columns["tl_bucket"] = timeline.bucket[order].astype(np.int64)
        parts = {name: timeline.weights[name][order].astype(np.int64) for name in names if name in timeline.weights}
        timed = list(parts)
        for name, values in parts.items():
            np.subtract.at(self_weights[name], node, values)
        columns |= {f"tl:{name}": _zigzag(values) for name, values in _without_prediction(parts).items()}
    columns |= {f"self:{name}": _zigzag(values) for name, values in _without_prediction(self_weights).items()}
    blocks = {name: _varints(values) for name, values in columns.items()}
    header = {
        "title": tree.title,
        "frames": [[f.layer, f.label, f.file, f.module] for f in tree.frames],
        "weights": names,
        "timed": timed,
        "edges_ns": [] if timeline is None else timeline.edges_ns.tolist(),
        "notes": tree.notes,
        "states": _STATES | {f.label: "gpu-sync" for f in tree.frames if f.label.startswith((WAITING, SPINNING))},
        "details": {str(frame): lines for frame, lines in sorted(tree.details.items())},
        "weight": weight if weight in names else (names[0] if names else None),
        "columns": [[name, len(columns[name]), len(block)] for name, block in blocks.items()],
    }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    return zlib.compress(b"".join([struct.pack("<I", len(text)), text, *blocks.values()]), 6)


def _without_prediction(weights: _Columns) -> _Columns:
    rest = dict(weights)
    if "wall" in rest:
        for name in ("cpu", "off-cpu"):
            if name in weights:
                rest["wall"] = rest["wall"] - weights[name]
    return rest


def _zigzag(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (values << 1) ^ (values >> 63)


def _varints(values: npt.NDArray[np.int64]) -> bytes:
    """LEB128 of non-negative integers."""
    rest = values.astype(np.uint64)
    if not len(rest):
        return b""
    lengths = np.ones(len(rest), np.int64)
    for k in range(1, 10):
        lengths += rest >= np.uint64(1 << 7 * k)
    starts = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    for k in range(int(lengths.max())):
        live = np.flatnonzero(lengths > k)
        more = (lengths[live] > k + 1).astype(np.uint8) << 7
        out[starts[live] + k] = (rest[live] & np.uint64(127)).astype(np.uint8) | more
        rest[live] >>= np.uint64(7)
    return out.tobytes()


def _asset(name: str) -> str:
    return resources.files("perfscope.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")

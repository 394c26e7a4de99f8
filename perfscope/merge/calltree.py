"""The one call tree of a session: processes and threads at the root, frames of every layer, states as leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

WEIGHTS = ("wall", "cpu", "off-cpu", "gpu", "samples")
"""wall, cpu, off-cpu, gpu: nanoseconds. gpu: of each GPU all the time, busy and idle, under the code that caused it.
samples: looks of the samplers (torn ones left out), a count."""


class TreeFrame(NamedTuple):
    """What a node shows. layer: those of model.schema.LAYERS, and "process" and "thread". Lines are not part of it:
    calls of one function from several lines are one node; CallTree.line keeps the line that weighs most."""

    layer: str
    label: str
    file: str | None = None
    module: str | None = None


@dataclass(frozen=True)
class Timeline:
    """The tree's self weights cut into equal windows of time, sparse, for looking at a part of the recording.

    edges_ns: int64[b + 1]. node, bucket: int32[k]; weights: name -> int64[k]. Summed over buckets it equals
    CallTree.weights for every node and every weight that has times (samples without times are left out).
    """

    edges_ns: npt.NDArray[np.int64]
    node: npt.NDArray[np.int32]
    bucket: npt.NDArray[np.int32]
    weights: dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class CallTree:
    """n nodes; node 0 is the root (frame -1), and every parent stands before its children.

    parent: int32[n] (-1 for the root). frame: int32[n], index into frames. weights: name -> int64[n], self weight;
    only those that the session can give. line: int32[n], heaviest line, -1 unknown.
    notes: sentences that belong beside the picture (clock errors, losses, what is unsampled).
    details: index into frames -> lines that say more about it (how often a kernel ran, what was measured of it).
    """

    title: str
    frames: list[TreeFrame]
    parent: npt.NDArray[np.int32]
    frame: npt.NDArray[np.int32]
    line: npt.NDArray[np.int32]
    weights: dict[str, npt.NDArray[np.int64]]
    timeline: Timeline | None = None
    notes: list[str] = field(default_factory=list)
    details: dict[int, list[str]] = field(default_factory=dict)

    def totals(self, weight: str) -> npt.NDArray[np.int64]:
        """int64[n]: self weight plus that of all descendants."""
        total = self.weights[weight].copy()
        parent = self.parent
        for node in range(len(total) - 1, 0, -1):
            total[parent[node]] += total[node]
        return total

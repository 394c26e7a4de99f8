"""Facts -> CallTree: processes and threads at the root, frames of every layer below, states as leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.merge import gpu_words
from perfscope.merge.calltree import WEIGHTS, CallTree, Timeline, TreeFrame
from perfscope.merge.facts import NOBODY, Facts, facts_of
from perfscope.merge.intervals import distinct
from perfscope.merge.kernel_groups import Rules, defaults
from perfscope.merge.notes import notes_on
from perfscope.merge.slices import RUNNING, STATE_LABELS, STATES, UNSAMPLED
from perfscope.merge.sums import summed
from perfscope.merge.tables import ThreadInfo, matches
from perfscope.model.session import Session
from perfscope.model.stacks import ROOT, Frame, StackTable

_Index = npt.NDArray[np.int64]


def build_tree(
    session: Session,
    *,
    thread: str | None = None,
    from_s: float | None = None,
    to_s: float | None = None,
    groups: Rules | None = None,
) -> CallTree:
    """The call tree of a session, or of a part of it.

    thread: shell-style pattern, in any case, on thread names; or a tid. from_s, to_s: seconds from the recording's
    start; what lies across them is cut there, to the nanosecond. Samples without times are left out of such a part.
    groups: what kernels do, by their names (kernel_groups.load); default: the shipped table.
    Weights: wall where anything has times; cpu and off-cpu where scheduler records are complete for some thread (of
    the others only wall is known, and a note says so); gpu where GPU activity was recorded; samples where a sampler
    ran.
    Raises SessionError for a damaged table.
    """
    start = session.info.start_ns
    facts = facts_of(
        session,
        from_ns=None if from_s is None else start + round(from_s * 1e9),
        to_ns=None if to_s is None else start + round(to_s * 1e9),
    )
    return _Builder(session, facts, thread, groups or defaults()).tree()


@dataclass(frozen=True)
class _Paths:
    """The stack trie with one stack more, the last, so that ROOT = -1 finds it: "[unsampled]".

    parent, depth, line, path: of each stack; path numbers stacks that differ in lines alone alike, callers first.
    frame: of each path, index into frames.
    """

    frames: list[TreeFrame]
    parent: _Index
    depth: _Index
    line: _Index
    path: _Index
    frame: _Index

    @classmethod
    def of(cls, stacks: StackTable) -> _Paths:
        frames: dict[TreeFrame, int] = {}
        unsampled = [Frame("state", UNSAMPLED)]
        of_frame = [
            frames.setdefault(TreeFrame(f.layer, f.function, f.file, f.module), len(frames))
            for f in stacks.frames + unsampled
        ]
        lines = [-1 if f.line is None else f.line for f in stacks.frames + unsampled]
        parents, stack_frames = [*stacks.parents, ROOT], [*stacks.stack_frames, len(stacks.frames)]
        paths: dict[tuple[int, int], int] = {}
        path: list[int] = []
        depth: list[int] = []
        for parent, frame in zip(parents, stack_frames, strict=True):
            caller = path[parent] if parent != ROOT else ROOT
            path.append(paths.setdefault((caller, of_frame[frame]), len(paths)))
            depth.append(depth[parent] + 1 if parent != ROOT else 0)
        columns = (parents, depth, np.array(lines)[stack_frames], path, [frame for _, frame in paths])
        return cls(list(frames), *(np.asarray(column, np.int64) for column in columns))


class _Builder:
    """Numbers the nodes: root, processes, threads, paths of each thread, then their state leaves."""

    def __init__(self, session: Session, facts: Facts, pattern: str | None, groups: Rules) -> None:
        self.session = session
        self.facts = facts
        self.groups = groups
        chosen = np.array([matches(pattern, _searched_name(i), i.tid) for i in facts.threads] or [False])
        self.time = np.flatnonzero(chosen[facts.thread])
        self.looks = np.flatnonzero(chosen[facts.sample_thread])
        self.gpu = np.flatnonzero(chosen[facts.gpu_thread])
        of_rows = [facts.thread[self.time], facts.sample_thread[self.looks], facts.gpu_thread[self.gpu]]
        shown, number = np.unique(np.concatenate(of_rows), return_inverse=True)
        self.threads = [facts.threads[i] for i in shown.tolist()]
        self.time_thread, self.look_thread, self.gpu_thread = np.split(
            number, np.cumsum([len(rows) for rows in of_rows])[:-1]
        )

    def tree(self) -> CallTree:
        facts, paths = self.facts, _Paths.of(self.session.stacks)
        frames = list(paths.frames)
        parent, frame = self._trunk(frames)
        first_thread, first_path = len(parent) - len(self.threads), len(parent)

        # A raw pair is thread * width + stack, a node's pair is thread * width + path.
        width = len(paths.parent)
        time_raw = self.time_thread * width + facts.stack[self.time] % width
        look_raw = self.look_thread * width + facts.sample_stack[self.looks] % width
        gpu_raw = self.gpu_thread * width + (facts.gpu.stack[self.gpu] if facts.gpu else self.gpu) % width
        raw = _with_callers(np.concatenate([time_raw, look_raw, gpu_raw]), paths.parent, width)
        raw_thread, raw_stack = np.divmod(raw, width)
        caller = paths.parent[raw_stack]
        raw_caller = np.where(caller == ROOT, -1, np.searchsorted(raw, raw - raw_stack + caller))
        pairs, raw_node = np.unique(raw_thread * width + paths.path[raw_stack], return_inverse=True)
        path_parent = np.empty(len(pairs), np.int64)
        path_parent[raw_node] = np.where(raw_caller < 0, first_thread + raw_thread, first_path + raw_node[raw_caller])
        path_frame = paths.frame[pairs % width]

        time_at, look_at = np.searchsorted(raw, time_raw), np.searchsorted(raw, look_raw)
        own = np.zeros(len(raw), np.int64)
        if len(time_at):
            np.add.at(own, time_at, facts.ns[self.time])
        elif len(look_at) or facts.gpu is None:
            np.add.at(own, look_at, facts.sample_count[self.looks])
        else:
            np.add.at(own, np.searchsorted(raw, gpu_raw), facts.gpu.ns[self.gpu])
        path_line = _heaviest_lines(own, raw_caller, raw_node, paths.depth[raw_stack], paths.line[raw_stack])

        time_node, state = first_path + raw_node[time_at], facts.state[self.time]
        leaf_parent, leaf_state, time_node = _state_leaves(time_node, state, first_path + len(pairs))
        leaf_frame = np.empty(len(STATES), np.int64)
        for code, label in STATE_LABELS.items():
            leaf_frame[code] = len(frames)
            frames.append(TreeFrame("state", label))

        parents = np.concatenate([parent, path_parent, leaf_parent])
        node_frame = np.concatenate([frame, path_frame, leaf_frame[leaf_state]])
        rows = self._rows(time_node, state, first_path + raw_node[look_at])
        details: dict[int, list[str]] = {}
        if facts.gpu is not None:
            gpu_node = first_path + raw_node[np.searchsorted(raw, gpu_raw)]
            parents, node_frame, rows["gpu"] = self._gpu_nodes(gpu_node, parents, node_frame, frames)
            kernels = {f.label: i for i, f in enumerate(frames) if f.layer == "gpu" and f.label in set(facts.gpu.names)}
            details = {kernels[n]: lines for n, lines in gpu_words.details(self.session, kernels).items()}
        line = np.full(len(parents), -1, np.int32)
        line[first_path : first_path + len(pairs)] = path_line
        weights = {name: np.zeros(len(parents), np.int64) for name in WEIGHTS if name in rows}
        for name, weight in weights.items():
            node, _, value = rows[name]
            np.add.at(weight, node, value)
        return CallTree(
            title=_title(self.session),
            frames=frames,
            parent=parents.astype(np.int32),
            frame=node_frame.astype(np.int32),
            line=line,
            weights=weights,
            timeline=_timeline(facts.edges_ns, rows),
            notes=notes_on(self.session, facts, self.threads, self.time)
            + ([] if facts.gpu is None else gpu_words.notes(facts.gpu)),
            details=details,
        )

    def _gpu_nodes(
        self, node: _Index, parents: _Index, node_frame: _Index, frames: list[TreeFrame]
    ) -> tuple[_Index, _Index, tuple[_Index, _Index, _Index]]:
        """parent and frame of all nodes with those of GPU time added, and its rows: node, window, value.

        node: the stack that each row hangs below.
        """
        gpu = self.facts.gpu
        assert gpu is not None
        below = np.stack([node, gpu.device[self.gpu], gpu.what[self.gpu], gpu.state[self.gpu]])
        distinct_rows, index = np.unique(below, axis=1, return_inverse=True)
        known = {frame: number for number, frame in enumerate(frames)}
        near = np.flatnonzero(np.isin(parents, node))
        at = {(int(parents[n]), int(node_frame[n])): n for n in near.tolist()}
        added: list[tuple[int, int]] = []
        ends = np.empty(distinct_rows.shape[1], np.int64)
        for number, (place, device, what, state) in enumerate(distinct_rows.T.tolist()):
            for tree_frame in gpu_words.chain(gpu, device, what, state, self.groups):
                if tree_frame not in known:
                    known[tree_frame] = len(frames)
                    frames.append(tree_frame)
                key = (place, known[tree_frame])
                if key not in at:
                    at[key] = len(parents) + len(added)
                    added.append(key)
                place = at[key]
            ends[number] = place
        more = np.array(added, np.int64).reshape(-1, 2)
        rows = (ends[index.ravel()], gpu.window[self.gpu], gpu.ns[self.gpu])
        return np.concatenate([parents, more[:, 0]]), np.concatenate([node_frame, more[:, 1]]), rows

    def _trunk(self, frames: list[TreeFrame]) -> tuple[_Index, _Index]:
        """parent and frame of the root, the processes and the threads; adds their frames."""
        names = {t.pid: t.process for t in self.threads}
        pids = sorted(names)
        parent = [-1, *(0 for _ in pids), *(1 + pids.index(t.pid) for t in self.threads)]
        first = len(frames)
        frames += [TreeFrame("process", "(process unknown)" if p == NOBODY else f"{names[p]} ({p})") for p in pids]
        for t in self.threads:
            frames.append(TreeFrame("thread", "(thread unknown)" if t.tid == NOBODY else f"{t.name} ({t.tid})"))
        return np.array(parent, np.int64), np.array([-1, *range(first, len(frames))], np.int64)

    def _rows(self, time_node: _Index, state: _Index, look_node: _Index) -> dict[str, tuple[_Index, _Index, _Index]]:
        """Weight -> node, window and value of each row that adds to it."""
        facts = self.facts
        window, ns = facts.window[self.time], facts.ns[self.time]
        complete = np.array([t.sched_complete for t in self.threads] or [False])
        known = complete[self.time_thread]
        running = state == RUNNING
        rows = {}
        if any(t.tid != NOBODY and t.end_ns > t.start_ns for t in facts.threads):
            rows["wall"] = (time_node, window, ns)
        if any(t.sched_complete for t in facts.threads):
            for name, part in (("cpu", known & running), ("off-cpu", known & ~running)):
                rows[name] = (time_node[part], window[part], ns[part])
        if facts.all_looks:
            rows["samples"] = (look_node, facts.sample_window[self.looks], facts.sample_count[self.looks])
        return rows


def _searched_name(info: ThreadInfo) -> str | None:
    return None if info.tid == NOBODY else info.name


def _with_callers(raw: _Index, parent: _Index, width: int) -> _Index:
    """The distinct (thread, stack) pairs and those of all their callers, ascending."""
    level = distinct(raw)
    found = [level]
    while len(level):
        stack = level % width
        inner = parent[stack] != ROOT
        level = distinct((level - stack + parent[stack])[inner])
        found.append(level)
    return distinct(np.concatenate(found))


def _heaviest_lines(own: _Index, caller: _Index, node: _Index, depth: _Index, line: _Index) -> _Index:
    """Of each node the line with the most weight in and below it, -1 if its lines aren't known.

    own, caller, node, depth, line: of each (thread, stack) pair; caller: index of a pair, or -1.
    """
    total = own.copy()
    order = np.argsort(depth, kind="stable")
    starts = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 1))
    for level in np.split(order, starts)[:0:-1]:
        np.add.at(total, caller[level], total[level])
    (by_node, by_line), weight = summed([node, line], total)
    order = np.lexsort([-by_line, weight, by_node])  # equal weights: the first line
    last = np.append(np.diff(by_node[order]) != 0, True)[: len(order)]
    lines: _Index = by_line[order][last]
    return lines


def _state_leaves(node: _Index, state: _Index, first: int) -> tuple[_Index, _Index, _Index]:
    """Parents and states of the leaves, numbered from `first`, and for each row the node that takes its time."""
    leaf = np.flatnonzero(np.isin(state, list(STATE_LABELS)))
    keys, which = np.unique(node[leaf] * len(STATES) + state[leaf], return_inverse=True)
    taken = node.copy()
    taken[leaf] = first + which
    return keys // len(STATES), keys % len(STATES), taken


def _timeline(edges: _Index, rows: dict[str, tuple[_Index, _Index, _Index]]) -> Timeline | None:
    """The same rows by node and window; None if nothing has times."""
    if len(edges) < 2:
        return None
    timed = {name: [column[row[1] >= 0] for column in row] for name, row in rows.items()}
    keys = {name: node * len(edges) + window for name, (node, window, _) in timed.items()}
    cells = distinct(np.concatenate(list(keys.values()) or [np.empty(0, np.int64)]))
    weights = {name: np.zeros(len(cells), np.int64) for name in timed}
    for name, key in keys.items():
        np.add.at(weights[name], np.searchsorted(cells, key), timed[name][2])
    return Timeline(edges, (cells // len(edges)).astype(np.int32), (cells % len(edges)).astype(np.int32), weights)


def _title(session: Session) -> str:
    command = " ".join(session.info.command)
    return f"{session.path.name}: {command}" if command else session.path.name

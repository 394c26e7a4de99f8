"""Call trees with known figures for the report tests: each value is worked out from the list of stacks itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfscope.clock import MONOTONIC, ClockMap
from perfscope.merge.calltree import CallTree, Timeline, TreeFrame
from perfscope.model.finding import Diagnosis, Evidence, Finding, Severity, Verdict, Where
from perfscope.model.info import CollectorReport, SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter

ODD_NAMES = (
    "operator;()(int;)",
    "two  spaces ",
    "ends in 42",
    "std::map<K, V<T>>::find<int>(T const&)",
    "Main$$Lambda/0x00007f.run",
    "<lambda>",
    "حساب_שלום",
    "e\u0301\u0323 combining",
    "bidi\u202eevil\u202c",
    "bell\x07 esc\x1b[31m nul\x00",
    "line\nbreak\r\u2028sep",
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "{{data}} {{title}} \\x41 \\n",
    "lone \udcff surrogate",
    "名前 🔥",
    "tricky_[k]",
    "",
)


@dataclass(frozen=True)
class Stack:
    """One stack with its weights in one bucket of time. `frames`: process, thread, then outermost first."""

    frames: tuple[TreeFrame, ...]
    wall: int
    cpu: int
    samples: int
    bucket: int = 0


def frame(layer: str, label: str, file: str | None = None, module: str | None = None) -> TreeFrame:
    return TreeFrame(layer, label, file, module)


def build(
    stacks: Sequence[Stack], *, title: str = "test session", buckets: int = 10, notes: Sequence[str] = ()
) -> CallTree:
    """The tree of `stacks`; buckets are 0.1 s each and start at 5 s on the clock."""
    frames: dict[TreeFrame, int] = {}
    nodes: dict[tuple[int, int], int] = {}
    parent, frame_of = [-1], [-1]
    ends = []
    for stack in stacks:
        at = 0
        for item in stack.frames:
            number = frames.setdefault(item, len(frames))
            key = (at, number)
            if key not in nodes:
                nodes[key] = len(parent)
                parent.append(at)
                frame_of.append(number)
            at = nodes[key]
        ends.append(at)
    node = np.asarray(ends, np.int32)
    parts = {
        "wall": np.asarray([s.wall for s in stacks], np.int64),
        "cpu": np.asarray([s.cpu for s in stacks], np.int64),
        "off-cpu": np.asarray([s.wall - s.cpu for s in stacks], np.int64),
        "samples": np.asarray([s.samples for s in stacks], np.int64),
    }
    weights = {}
    for name, values in parts.items():
        weights[name] = np.zeros(len(parent), np.int64)
        np.add.at(weights[name], node, values)
    return CallTree(
        title=title,
        frames=list(frames),
        parent=np.asarray(parent, np.int32),
        frame=np.asarray(frame_of, np.int32),
        line=np.where(np.arange(len(parent)) % 3 == 0, -1, np.arange(len(parent)) + 10).astype(np.int32),
        weights=weights,
        timeline=Timeline(
            edges_ns=5 * 10**9 + np.arange(buckets + 1, dtype=np.int64) * 10**8,
            node=node,
            bucket=np.asarray([s.bucket for s in stacks], np.int32),
            weights=parts,
        ),
        notes=list(notes),
    )


def server() -> list[Stack]:
    """A small inference server: a Java gateway and a Python server with workers, over ten buckets."""
    gateway = (frame("process", "java Gateway (4098)"),)
    python = (frame("process", "python serve.py (4121)"),)
    stacks = []
    for bucket in range(10):
        for worker in range(3):
            base = (*python, frame("thread", f"worker-{worker}"), frame("python", "run", "serve.py"))
            handle = (*base, frame("python", "handle", "serve.py"))
            model = (*handle, frame("python", "forward", "model.py"))
            matmul = (*model, frame("native", "cblas_sgemm", None, "libopenblas.so.0"))
            gil = frame("state", "[waiting: GIL]")
            stacks += [
                Stack((*handle, frame("python", "encode", "tokenizer.py")), 9_000_000 + worker, 8_000_000, 2, bucket),
                Stack((*handle, frame("python", "encode", "tokenizer.py"), gil), 21_000_000, 0, 2, bucket),
                Stack(matmul, 30_000_000 + 1000 * bucket, 29_000_000, 3, bucket),
                Stack((*matmul, frame("kernel", "asm_exc_page_fault")), 4_000_000, 4_000_000, 1, bucket),
                Stack((*model, frame("python", "forward", "model.py"), gil), 6_000_000, 0, 1, bucket),
                Stack((*base, frame("state", "[sleeping]")), 30_000_000 - worker, 0, 3, bucket),
            ]
        for pool in range(2):
            base = (*gateway, frame("thread", f"http-pool-{pool}"))
            java = (*base, frame("java", "com.example.gateway.Gateway.handle", "Gateway.java"))
            parse = (*java, frame("java", "com.example.gateway.Json.parse", "Json.java"))
            read = (*java, frame("java", "sun.nio.ch.SocketDispatcher.read0", "SocketDispatcher.java"))
            stacks += [
                Stack(parse, 12_000_000 + bucket * 3_000_000, 12_000_000, 2, bucket),
                Stack(
                    (*read, frame("kernel", "__x64_sys_read"), frame("state", "[sleeping]")), 40_000_000, 0, 4, bucket
                ),
                Stack((*java, frame("java", "run", "Gateway.java")), 5_000_000, 5_000_000, 1, bucket),
            ]
    return stacks


def odd() -> list[Stack]:
    """Every odd name, as process, thread and frame of every layer."""
    stacks = []
    for i, name in enumerate(ODD_NAMES):
        for layer in ("java", "python", "native", "kernel", "gpu", "state"):
            path = (
                frame("process", name),
                frame("thread", name),
                frame(layer, name, name or None),
                frame("native", "leaf"),
            )
            stacks.append(Stack(path, 1000 + i, 500, 1 + i))
    return stacks


def many(distinct: int = 100_000, depth: int = 24, seed: int = 7) -> CallTree:
    """A tree with `distinct` different stacks with a weight, over a few thousand functions and 200 buckets."""
    random = np.random.default_rng(seed)
    layers = ("python", "python", "native", "java", "kernel")
    functions = [
        frame(layers[i % 5], f"module_{i % 211}.Class{i % 97}.function_{i}", f"src/pkg_{i % 211}/file_{i % 613}.py")
        for i in range(4000)
    ]
    frames = [frame("process", "python serve.py (1)"), *(frame("thread", f"worker-{i}") for i in range(16)), *functions]
    parent, frame_of = [-1, 0], [-1, 0]
    parent += [1] * 16
    frame_of += list(range(1, 17))
    level = list(range(2, 18))
    seen: set[tuple[int, int]] = set()
    while len(parent) < distinct + 18:
        grown = []
        for at in level:
            for _ in range(int(random.integers(1, 4))):
                number = int(17 + 3999 * random.random() ** 2)
                if (at, number) not in seen and len(parent) < distinct + 18:
                    seen.add((at, number))
                    grown.append(len(parent))
                    parent.append(at)
                    frame_of.append(number)
        keep = random.random(len(grown)) < 0.62
        level = [n for n, k in zip(grown, keep, strict=True) if k] or grown or level
    n = len(parent)
    node = np.concatenate([np.arange(18, n), random.integers(18, n, distinct)]).astype(np.int32)
    bucket = random.integers(0, 200, len(node)).astype(np.int32)
    wall = random.exponential(3e6, len(node)).astype(np.int64) + 1
    cpu = np.where(random.random(len(node)) < 0.6, wall, 0)
    parts = {"wall": wall, "cpu": cpu, "off-cpu": wall - cpu, "samples": np.ones(len(node), np.int64)}
    weights = {}
    for name, values in parts.items():
        weights[name] = np.zeros(n, np.int64)
        np.add.at(weights[name], node, values)
    return CallTree(
        title="100,000 distinct stacks",
        frames=frames,
        parent=np.asarray(parent, np.int32),
        frame=np.asarray(frame_of, np.int32),
        line=random.integers(1, 2000, n).astype(np.int32),
        weights=weights,
        timeline=Timeline(np.arange(201, dtype=np.int64) * 10**8, node, bucket, parts),
        notes=["py-spy ±0.6 ms", "0 events lost"],
    )


def session(path: Path) -> Session:
    """A small finished session on disk: two processes, four collectors in every state, known losses and costs."""
    writer = SessionWriter(path)
    second = 10**9
    writer.note_process(4121, name="python", command="python serve.py --port 8000", runtime="python")
    writer.note_process(4098, name="java", command="java Gateway", runtime="java")
    for tid, cpu in ((4121, 2 * second), (4130, second // 2)):
        writer.note_thread(4121, tid, name=f"worker-{tid}", start_ns=0, end_ns=32 * second, cpu_ns=cpu)
    writer.note_thread(4098, 4098, name="main", start_ns=0, end_ns=32 * second)
    info = SessionInfo(
        command=["python", "serve.py", "--port", "8000"],
        pids=[4121],
        start_ns=10 * second,
        stop_ns=42 * second + 400_000_000,
        started_at="2026-11-29T15:00:00+00:00",
        stopped_by="target exited",
        exit_status=0,
        own_cpu_ns=291_600_000,
        tool_version="0.1.0",
        clocks={
            "ebpf": MONOTONIC,
            "jfr": ClockMap("jfr-ticks", 0, 10_000, method="ticks at JFR.start"),
            "pyspy": ClockMap("pyspy-instant", 0, 640_000, resolution_ns=10_000_000),
        },
        collectors={
            "ebpf": CollectorReport(version="libbpf 1.1", lost_events=12, events=1_204_319, cpu_ns=90_000_000),
            "jfr": CollectorReport(
                "partial", "the JVM was killed; read as far as it goes", lost_events=None, events=310
            ),
            "pyspy": CollectorReport(lost_events=0, late_samples=3, notes=["3 torn stacks of 2,410 left out"]),
            "nvml": CollectorReport(
                "unavailable", "no NVIDIA driver on this host", "install the driver: apt-get install nvidia-driver"
            ),
        },
    )
    return Session.open(writer.finish(info))


def diagnosis() -> Diagnosis:
    """Two findings and three other verdicts."""
    gil = Finding(
        "gil-contention",
        "GIL contention",
        Severity.HIGH,
        Where(
            process="python serve.py",
            pid=4121,
            thread="worker-0",
            tid=4130,
            stack=("run", "handle", "encode"),
            file="tokenizer.py",
            line=88,
            function="encode",
        ),
        (
            Evidence("waited for the GIL", 78.9e9, "ns", 5e9, "waits, eBPF, exact", "5 % of thread time"),
            Evidence("held by encode", 71.04, "%", None, "samples, py-spy"),
        ),
        41.2,
        "run encode() in a process pool, or use a tokenizer that releases the GIL",
        "perfscope flame serve.perfscope --weight off-cpu --thread 'worker-*'",
    )
    disk = Finding("disk-wait", "Disk wait", Severity.MEDIUM, Where(device="vda"), (), None, "use a faster disk")
    verdicts = (
        Verdict("gil-contention", "flagged", "78.9 s", (gil,)),
        Verdict("disk-wait", "flagged", "1 s", (disk,)),
        Verdict("lock-contention", "ok", "waited 0.2 % for locks, under 5 %"),
        Verdict("python-hotspot", "ok", "no function over 40 %"),
        Verdict("gc-pause", "not_evaluable", "no JFR events; run the target on a JVM with --collect jfr"),
    )
    return Diagnosis("serve.perfscope", verdicts, (gil, disk))

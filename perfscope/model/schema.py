"""Every table of a session, declared once.

Times are int64 nanoseconds on CLOCK_MONOTONIC of the recorded host (`_ns`); pids and tids are those of the host's
pid namespace. A value that was not measured is null, never 0. docs/session-format.md is tested against this module.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 1
"""Version of the tables and of session.json. A reader refuses a newer one."""

LAYERS = ("java", "python", "native", "kernel", "gpu", "state")
"""Layers of a frame, outermost language first; `state` frames say what a thread waited for."""


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, what it means, and whether null (= not measured, not applicable) may stand in it."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = False


def _col(name: str, type_: pa.DataType, doc: str, null: bool = False) -> Column:
    return Column(name, type_, doc, null)


_i64, _i32, _u64, _str, _bool, _f64 = pa.int64(), pa.int32(), pa.uint64(), pa.string(), pa.bool_(), pa.float64()
_cat = pa.dictionary(pa.int32(), pa.string())

TABLES: dict[str, tuple[Column, ...]] = {
    "processes": (
        _col("pid", _i32, "process id"),
        _col("ppid", _i32, "parent's process id", True),
        _col("name", _str, "short name, as in /proc/PID/comm"),
        _col("command", _str, "command line, arguments joined by spaces; null if unknown", True),
        _col("runtime", _cat, "python, java, or native for all else"),
        _col("start_ns", _i64, "first moment this process was seen in the recording", True),
        _col("end_ns", _i64, "when it exited; null if it outlived the recording", True),
    ),
    "threads": (
        _col("pid", _i32, "process id"),
        _col("tid", _i32, "thread id of the kernel"),
        _col("name", _str, "the runtime's own name for it where known, else the kernel's comm", True),
        _col("start_ns", _i64, "first moment it was observed: the later of its birth and the recording's start"),
        _col("end_ns", _i64, "last moment it was observed: the earlier of its death and the recording's end"),
        _col("cpu_ns", _i64, "time on a CPU between start_ns and end_ns by /proc/PID/task/TID/schedstat", True),
        _col("runnable_ns", _i64, "time runnable without a CPU, by the same file", True),
        _col(
            "sched_complete",
            _bool,
            "true if `sched` holds every interval off the CPU of this thread, so that "
            "what lies between them was on a CPU",
        ),
    ),
    "frames": (
        _col("frame_id", _i32, "row number"),
        _col("layer", _cat, "java, python, native, kernel, gpu or state"),
        _col("function", _str, "function as its language shows it"),
        _col("file", _str, "source file", True),
        _col("line", _i32, "line being executed, counted from 1", True),
        _col("module", _str, "class, library or binary that holds the function", True),
    ),
    "stacks": (
        _col("stack_id", _i32, "row number"),
        _col("parent_id", _i32, "stack_id of the caller's stack; -1 at the root"),
        _col("frame_id", _i32, "innermost frame of this stack"),
    ),
    "samples": (
        _col("source", _cat, "pyspy, pyspy-gil, jfr, austin or import"),
        _col("pid", _i32, "process id; null when the tool didn't say", True),
        _col("tid", _i32, "kernel thread id; null when the tool didn't say", True),
        _col("time_ns", _i64, "when the stack was seen; null where the tool keeps counts only", True),
        _col(
            "duration_ns",
            _i64,
            "how long the sampler saw this stack unchanged, up to its next look at the thread; "
            "of counts how long the looks stand for, by the sampler's rate; "
            "null where unknown (then the nearest sample in time applies)",
            True,
        ),
        _col("stack_id", _i32, "the stack"),
        _col("count", _i64, "looks this row stands for; 0 for time that none fell into"),
        _col("torn", _bool, "true if the stack can't have existed (read while it changed); kept out of hot paths"),
    ),
    "sched": (
        _col("pid", _i32, "process id"),
        _col("tid", _i32, "thread id"),
        _col("off_ns", _i64, "when it left the CPU (or the recording's start, if it was off already)"),
        _col("wake_ns", _i64, "when it became runnable; equals off_ns when preempted; null: never woken", True),
        _col("on_ns", _i64, "when it got a CPU again; null: not before the end of the observation", True),
        _col(
            "state",
            _cat,
            "why it left: R preempted or yielded, S sleeping, D uninterruptible, T stopped, X dead, "
            "N newborn (created, not yet run), I idle kernel thread, ? unknown",
        ),
        _col("waker_tid", _i32, "thread that woke it", True),
        _col("cpu", _i32, "CPU it came back on", True),
        _col("prev_tid", _i32, "thread that had that CPU just before (0: idle)", True),
    ),
    "waits": (
        _col("pid", _i32, "process id"),
        _col("tid", _i32, "waiting thread"),
        _col("start_ns", _i64, "left the CPU, in futex(2)"),
        _col("end_ns", _i64, "on a CPU again; null: not before the recording's end", True),
        _col(
            "kind",
            _cat,
            "gil (by address, in CPython's runtime state), futex (any other), or unknown (state not found)",
        ),
        _col("address", _u64, "futex address: the lock's identity within its process"),
        _col("waker_tid", _i32, "thread that woke it by futex(2), or by its end", True),
        _col("result", _i32, "0: woken by waker_tid; null: a timeout, a signal, or not known", True),
    ),
    "block_io": (
        _col("start_ns", _i64, "request created by its submitter"),
        _col("issue_ns", _i64, "handed to the device; queue time is issue_ns - start_ns", True),
        _col("complete_ns", _i64, "completed by the device; null: not before the recording's end", True),
        _col("pid", _i32, "submitting process"),
        _col("tid", _i32, "submitting thread (a kworker for writeback)"),
        _col("comm", _str, "submitter's name"),
        _col("device", _cat, "kernel's device name, or major:minor"),
        _col("sector", _i64, "first 512-byte sector"),
        _col("bytes", _i64, "size"),
        _col("operation", _cat, "read, write, discard, flush or other"),
        _col("flags", _cat, "rwbs letters as the kernel gives them (R W S sync, M metadata, A readahead, F FUA ...)"),
        _col("error", _i32, "0, or negative errno; null: not before the recording's end", True),
        _col("in_target", _bool, "submitted by a thread of the recorded processes"),
    ),
    "drm_jobs": (
        _col("queue_ns", _i64, "job pushed to its scheduler entity", True),
        _col("run_ns", _i64, "handed to the hardware ring", True),
        _col("done_ns", _i64, "its hardware fence signalled", True),
        _col("pid", _i32, "submitting process", True),
        _col("tid", _i32, "submitting thread", True),
        _col("device", _cat, "device, where the kernel says it", True),
        _col("ring", _cat, "hardware ring or scheduler name", True),
        _col("job", _u64, "job id, or fence sequence number", True),
        _col("queued_jobs", _i32, "jobs waiting in the entity at queue_ns", True),
    ),
    "jvm_events": (
        _col("time_ns", _i64, "start of the event"),
        _col("duration_ns", _i64, "0 for instants"),
        _col("pid", _i32, "the JVM"),
        _col("tid", _i32, "thread it happened on; null for the JVM as a whole", True),
        _col("type", _cat, "event type without the jdk. prefix: JavaMonitorEnter, ThreadPark, GarbageCollection, ..."),
        _col("stack_id", _i32, "Java stack, where the event carries one", True),
        _col("subject", _str, "monitor or allocated class, GC name, file path or host:port", True),
        _col("other_tid", _i32, "the other thread: the monitor's previous owner", True),
        _col("bytes", _i64, "bytes allocated, read, written or freed", True),
        _col("cause", _str, "GC or VM operation cause", True),
    ),
    "counters": (
        _col("time_ns", _i64, "middle of the bracket the value was read in"),
        _col("error_ns", _i64, "half of that bracket"),
        _col("source", _cat, "collector"),
        _col("name", _cat, "what was measured; carries its unit, e.g. gpu_power_w"),
        _col("device", _cat, "device it belongs to", True),
        _col("pid", _i32, "process it belongs to", True),
        _col("value", _f64, "the value"),
    ),
    "gpu_activity": (
        _col("start_ns", _i64, "when the device began"),
        _col("end_ns", _i64, "when the device was done"),
        _col("kind", _cat, "kernel, copy or set"),
        _col("pid", _i32, "process that asked for it"),
        _col("device", _i32, "CUDA device number as that process counts"),
        _col("context", _i32, "CUDA context"),
        _col("stream", _i32, "CUDA stream"),
        _col("correlation", _i64, "ties it to the call that asked for it (cuda_api), within its process"),
        _col("name", _cat, "kernel, demangled; for copies and sets what they do, e.g. copy HtoD pageable"),
        _col("grid_x", _i32, "blocks of the grid in x; null for copies and sets", True),
        _col("grid_y", _i32, "blocks of the grid in y", True),
        _col("grid_z", _i32, "blocks of the grid in z", True),
        _col("block_x", _i32, "threads of a block in x", True),
        _col("block_y", _i32, "threads of a block in y", True),
        _col("block_z", _i32, "threads of a block in z", True),
        _col("registers", _i32, "registers a thread", True),
        _col("shared_bytes", _i64, "shared memory a block, static and dynamic", True),
        _col("graph_node", _u64, "node of the CUDA graph it belongs to", True),
        _col("bytes", _i64, "bytes copied or set", True),
        _col("source_memory", _cat, "of a copy: pageable, pinned, device, array, managed or unknown", True),
        _col("target_memory", _cat, "of a copy or set: the same", True),
        _col("launch_tid", _i32, "thread that asked for it; null where its call wasn't seen", True),
        _col("launch_ns", _i64, "entry of the call that asked for it", True),
        _col("stack_id", _i32, "stack of that thread in that call, read there (exact); null where none could be", True),
    ),
    "cuda_api": (
        _col("start_ns", _i64, "entry of the call"),
        _col("end_ns", _i64, "return of the call"),
        _col("pid", _i32, "process"),
        _col("tid", _i32, "calling thread"),
        _col("name", _cat, "CUDA function, e.g. cudaLaunchKernel"),
        _col("correlation", _i64, "ties it to what it asked of the device (gpu_activity), within its process"),
        _col("stack_id", _i32, "stack of the thread in this call", True),
        _col("result", _i32, "CUDA's status: 0 success"),
        _col("waited_for", _cat, "of a synchronisation: event, stream, context or stream-event", True),
        _col("stream", _i32, "of a synchronisation: the stream it waited for", True),
    ),
    "gpu_memory": (
        _col("time_ns", _i64, "when it was allocated or freed"),
        _col("pid", _i32, "process"),
        _col("device", _i32, "CUDA device number as that process counts"),
        _col("operation", _cat, "allocate or free"),
        _col("memory", _cat, "pageable, pinned, device, array, managed or unknown"),
        _col("address", _u64, "address of the block"),
        _col("bytes", _i64, "its size"),
        _col("correlation", _i64, "ties it to its call (cuda_api)", True),
    ),
    "gpu_kernels": (
        _col("launch", _i32, "measured launch, counted from 0"),
        _col("pid", _i32, "process of the measuring run", True),
        _col("name", _cat, "kernel, demangled, as in gpu_activity"),
        _col("device", _str, "device it was measured on", True),
        _col("grid_x", _i32, "blocks of the grid in x", True),
        _col("grid_y", _i32, "blocks of the grid in y", True),
        _col("grid_z", _i32, "blocks of the grid in z", True),
        _col("block_x", _i32, "threads of a block in x", True),
        _col("block_y", _i32, "threads of a block in y", True),
        _col("block_z", _i32, "threads of a block in z", True),
        _col("metric", _cat, "Nsight Compute's name of the metric"),
        _col("value", _f64, "its value in `unit`; a metric that wasn't measured has no row"),
        _col("unit", _cat, "base unit: ns, byte, %, hz, byte/s, or Nsight Compute's own where it has no base unit"),
    ),
    "spans": (
        _col("start_ns", _i64, "start of the span"),
        _col("end_ns", _i64, "its end; null: not before the recording's end", True),
        _col("pid", _i32, "process"),
        _col("tid", _i32, "thread"),
        _col("source", _cat, "nvtx"),
        _col("name", _cat, "name the program gave it"),
    ),
}


def schema(table: str) -> pa.Schema:
    """Arrow schema of one table, with each column's meaning in its field metadata."""
    return pa.schema(
        [pa.field(c.name, c.type, c.nullable, {"doc": c.doc}) for c in TABLES[table]],
        metadata={"perfscope.table": table, "perfscope.schema": str(SCHEMA_VERSION)},
    )

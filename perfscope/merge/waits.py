"""What a blocked thread waited for, told from stacks, JVM events and block requests (docs/merging.md)."""

from __future__ import annotations

from perfscope.merge.slices import GC, LOCK, SLEEP
from perfscope.model.stacks import ROOT, StackTable

_IDLE_PYTHON = {
    ("threading.py", "wait"),
    ("threading.py", "wait_for"),
    ("threading.py", "join"),
    ("threading.py", "_wait_for_tstate_lock"),
    ("threading.py", "_shutdown"),
    ("queue.py", "get"),
    ("queue.py", "put"),
    ("queues.py", "get"),
    ("thread.py", "_worker"),
    ("thread.py", "shutdown"),
    ("_base.py", "result"),
    ("_base.py", "exception"),
    ("_base.py", "wait"),
    ("_base.py", "as_completed"),
    ("selectors.py", "select"),
    ("process.py", "_process_worker"),
    ("pool.py", "worker"),
}
"""(file, function) of the standard library in which a Python thread waits for work or for a result, not for a lock."""

_JAVA_LOCKS = ("ReentrantLock", "ReentrantReadWriteLock", "StampedLock", "Semaphore", "NonfairSync", "FairSync")
_JAVA_LATCHES = ("CountDownLatch", "ConditionObject")

JAVA_STATES = {
    "JavaMonitorEnter": LOCK,
    "JavaMonitorWait": SLEEP,
    "ThreadPark": SLEEP,
    "ThreadSleep": SLEEP,
    "SocketRead": SLEEP,
    "SocketWrite": SLEEP,
    "ZAllocationStall": GC,
}
"""JVM events during which their thread waits, and for what. For ThreadPark, park_state says more."""

_CONCURRENT_COLLECTORS = ("ZGC", "Z ", "Shenandoah", "G1Old", "ConcurrentMarkSweep")


def stops_the_world(collector: str) -> bool:
    """Whether the JVM stands still for the whole of a collection by the collector of that name (as JFR names it)."""
    return not collector.startswith(_CONCURRENT_COLLECTORS)


def park_state(subject: str | None) -> int:
    """LOCK if a thread parked on this class waits for a lock to be released; SLEEP: for work, a result or a signal."""
    name = (subject or "").rsplit("/", 1)[-1].rsplit(".", 1)[-1]
    if any(latch in name for latch in _JAVA_LATCHES):
        return SLEEP
    return LOCK if any(lock in name for lock in _JAVA_LOCKS) or name.endswith("$Sync") else SLEEP


def may_sleep_for(operation: str, flags: str) -> bool:
    """Whether a thread asleep (state S, not D) may be waiting for such a block request of its own.

    Readahead and buffered writes finish behind its back; reads, sync writes and flushes are what callers of io_uring
    or libaio sleep for.
    """
    if operation == "read":
        return "A" not in flags
    return operation == "flush" or "S" in flags or "F" in flags


def futex_state(stacks: StackTable, stack_id: int) -> int:
    """LOCK or SLEEP for a thread that waits in futex(2) with that stack.

    Python: a lock, unless its innermost Python frame is one of the standard library's in which threads wait for work.
    Java and native: SLEEP unless the stack names a lock: to futex(2), locks and condition variables are the same.
    """
    callee: tuple[str, str] | None = None
    while stack_id != ROOT:
        frame = stacks.frames[stacks.stack_frames[stack_id]]
        stack_id = stacks.parents[stack_id]
        if frame.layer == "python":
            here = ((frame.file or "").rsplit("/", 1)[-1], frame.function.rsplit(".", 1)[-1])
            if callee is None:
                if here not in _IDLE_PYTHON:
                    return LOCK
                if here != ("threading.py", "wait"):
                    return SLEEP
                callee = here
            else:  # a semaphore waits on its condition: acquire -> wait
                return LOCK if here == ("threading.py", "acquire") else SLEEP
        elif frame.layer == "java":
            owner = frame.module or frame.function
            if "ConditionObject" in owner or "ConditionObject" in frame.function:
                return SLEEP
            if any(lock in owner for lock in _JAVA_LOCKS):
                return LOCK
    return SLEEP

"""What a blocked thread waited for, told from stacks, JVM events and block requests (docs/merging.md)."""

from __future__ import annotations

import re

from perfscope.merge.slices import GC, LOCK, SLEEP
from perfscope.model.stacks import ROOT, StackTable

_STANDARD_LIBRARY = re.compile(r"(?:.*/(?:python|pypy)3[^/]*/)?([^/].*)", re.DOTALL)
"""A file of the standard library, or a name that a sampler shortened: group 1 is its path within the library."""

_IDLE_PYTHON = {
    "threading.py": {"wait", "wait_for", "join", "_wait_for_tstate_lock", "_shutdown"},
    "queue.py": {"get", "put"},
    "concurrent/futures/thread.py": {"_worker", "shutdown"},
    "concurrent/futures/process.py": {"_process_worker"},
    "concurrent/futures/_base.py": {"result", "exception", "wait", "as_completed"},
    "multiprocessing/queues.py": {"get"},
    "multiprocessing/pool.py": {"worker"},
    "selectors.py": {"select"},
    "socket.py": {"readinto", "accept"},
}
"""Where in the standard library a Python thread waits for work or for a result, not for a lock. The calls of sockets
don't wait in futex(2) at all: a look that shows one beside such a wait came too early or too late to know of a lock."""

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
    in_wait = False
    while stack_id != ROOT:
        frame = stacks.frames[stacks.stack_frames[stack_id]]
        stack_id = stacks.parents[stack_id]
        if frame.layer == "python":
            here = (_library_file(frame.file), frame.function.rsplit(".", 1)[-1])
            if in_wait:  # a semaphore waits on its condition: acquire -> wait
                return LOCK if here == ("threading.py", "acquire") else SLEEP
            if here[1] not in _IDLE_PYTHON.get(here[0], ()):
                return LOCK
            if here != ("threading.py", "wait"):
                return SLEEP
            in_wait = True
        elif frame.layer == "java":
            owner = frame.module or frame.function
            if "ConditionObject" in owner or "ConditionObject" in frame.function:
                return SLEEP
            if any(lock in owner for lock in _JAVA_LOCKS):
                return LOCK
    return SLEEP


def _library_file(file: str | None) -> str:
    found = _STANDARD_LIBRARY.fullmatch(file or "")
    return found[1] if found else ""

"""What a blocked thread is said to wait for."""

from __future__ import annotations

import pytest

from perfscope.merge.slices import LOCK, SLEEP
from perfscope.merge.waits import futex_state
from perfscope.model.stacks import ROOT, Frame, StackTable

LIB = "/usr/lib/python3.11/"


def state(*frames: Frame) -> int:
    stacks = StackTable()
    return futex_state(stacks, stacks.stack(frames))


def python(function: str, file: str) -> Frame:
    return Frame("python", function, file, 1)


APP = python("handle", "/srv/app.py")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([APP], LOCK),
        ([APP, python("Condition.wait", LIB + "threading.py")], SLEEP),
        ([APP, python("Event.wait", "threading.py"), python("Condition.wait", "threading.py")], SLEEP),
        (
            [APP, python("Semaphore.acquire", LIB + "threading.py"), python("Condition.wait", LIB + "threading.py")],
            LOCK,
        ),
        ([APP, python("Thread._wait_for_tstate_lock", LIB + "threading.py")], SLEEP),
        ([python("_worker", LIB + "concurrent/futures/thread.py")], SLEEP),
        ([python("_worker", "concurrent/futures/thread.py")], SLEEP),
        ([python("_worker", "/opt/pypy/lib/pypy3.10/concurrent/futures/thread.py")], SLEEP),
        ([APP, python("SocketIO.readinto", LIB + "socket.py")], SLEEP),
        ([APP, python("readinto", "/srv/socket.py")], LOCK),
        ([python("_worker", "/srv/concurrent/futures/thread.py")], LOCK),  # not the standard library's
        ([python("get", "/srv/queue.py")], LOCK),
        ([python("get", LIB + "site-packages/queue.py")], LOCK),
        ([APP, Frame("native", "sem_wait", None, None, "libc.so.6"), Frame("kernel", "futex_wait")], LOCK),
        ([APP, python("get", LIB + "queue.py"), Frame("native", "sem_wait", None, None, "libc.so.6")], SLEEP),
        ([Frame("native", "pthread_cond_wait", None, None, "libc.so.6")], SLEEP),
        ([Frame("java", "work", "App.java", 3, "com.example.App")], SLEEP),
        ([Frame("java", "lock", "ReentrantLock.java", 3, "java.util.concurrent.locks.ReentrantLock")], LOCK),
        (
            [
                Frame("java", "take", "LinkedBlockingQueue.java", 3, "java.util.concurrent.LinkedBlockingQueue"),
                Frame(
                    "java",
                    "await",
                    "AQS.java",
                    3,
                    "java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject",
                ),
            ],
            SLEEP,
        ),
    ],
)
def test_futex_waits_by_stack(frames: list[Frame], expected: int) -> None:
    assert state(*frames) == expected


def test_no_stack_is_no_claim_of_a_lock() -> None:
    assert futex_state(StackTable(), ROOT) == SLEEP

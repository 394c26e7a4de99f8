"""Which events and constants of a .jfr file are read, and what of an event goes where."""

from __future__ import annotations

from dataclasses import dataclass

SAMPLES = ("jdk.ExecutionSample", "jdk.NativeMethodSample")
"""Events that become rows of `samples`."""


@dataclass(frozen=True)
class Kind:
    """How an event becomes a row of jvm_events: the names of the fields that hold each column, if any.

    pool: type of the constants that `subject` refers to ("" if it is a string itself).
    """

    subject: str | None = None
    pool: str = ""
    other: str | None = None
    bytes: str | None = None
    cause: str | None = None


EVENTS: dict[str, Kind] = {
    "jdk.JavaMonitorEnter": Kind("monitorClass", "java.lang.Class", other="previousOwner"),
    "jdk.JavaMonitorWait": Kind("monitorClass", "java.lang.Class", other="notifier"),
    "jdk.ThreadPark": Kind("parkedClass", "java.lang.Class"),
    "jdk.ThreadSleep": Kind(),
    "jdk.ThreadStart": Kind(),
    "jdk.ThreadEnd": Kind(),
    "jdk.GarbageCollection": Kind("name", "jdk.types.GCName", cause="cause"),
    "jdk.GCPhasePause": Kind("name"),
    "jdk.GCPhasePauseLevel1": Kind("name"),
    "jdk.GCPhaseConcurrent": Kind("name"),
    "jdk.SystemGC": Kind(),
    "jdk.ZAllocationStall": Kind(bytes="size"),
    "jdk.SafepointBegin": Kind(),
    "jdk.SafepointEnd": Kind(),
    "jdk.ExecuteVMOperation": Kind("operation", "jdk.types.VMOperationType", other="caller"),
    "jdk.ObjectAllocationSample": Kind("objectClass", "java.lang.Class", bytes="weight"),
    "jdk.ObjectAllocationInNewTLAB": Kind("objectClass", "java.lang.Class", bytes="tlabSize"),
    "jdk.ObjectAllocationOutsideTLAB": Kind("objectClass", "java.lang.Class", bytes="allocationSize"),
    "jdk.SocketRead": Kind("host", bytes="bytesRead"),
    "jdk.SocketWrite": Kind("host", bytes="bytesWritten"),
    "jdk.FileRead": Kind("path", bytes="bytesRead"),
    "jdk.FileWrite": Kind("path", bytes="bytesWritten"),
    "jdk.FileForce": Kind("path"),
}
"""Events that become rows of jvm_events. Bytes of allocation samples are their weight: what they stand for."""

OTHERS = ("jdk.GCHeapSummary", "jdk.CPULoad", "jdk.ExceptionStatistics", "jdk.DataLoss")
WANTED = frozenset((*SAMPLES, *EVENTS, *OTHERS))
"""Every event that is read."""

CONSTANTS: dict[str, tuple[str, ...] | None] = {
    "java.lang.Thread": ("osName", "osThreadId", "javaName"),
    "java.lang.String": None,
    "java.lang.Class": ("name",),
    "jdk.types.StackTrace": ("truncated", "frames"),
    "jdk.types.Method": ("type", "name"),
    "jdk.types.Symbol": ("string",),
    "jdk.types.FrameType": None,
    "jdk.types.ThreadState": None,
    "jdk.types.GCName": None,
    "jdk.types.GCCause": None,
    "jdk.types.GCWhen": None,
    "jdk.types.VMOperationType": None,
}
"""Constants that the tables need, and their fields."""

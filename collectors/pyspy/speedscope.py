"""speedscope files of any origin (https://www.speedscope.app/file-format-schema.json): sampled and evented profiles."""

from __future__ import annotations

import json
import math
import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscope.collectors.pyspy import frames as fr
from perfscope.collectors.pyspy.chrometrace import MAX_DEPTH
from perfscope.collectors.pyspy.textstream import read_whole
from perfscope.errors import InputError
from perfscope.model.stacks import ROOT, StackTable

UNITS = {"nanoseconds": 1, "microseconds": 10**3, "milliseconds": 10**6, "seconds": 10**9}
_LATEST_NS = 2**62
_PY_SPY_NAME = re.compile(r'(?:Process (\d{1,9}) )?Thread (\d{1,9})(?: "(.*)")?$', re.DOTALL)


@dataclass
class Profile:
    """One profile: rows of (start_ns, end_ns, stack, count), flattened; `timed` is false where it holds counts only.

    pid, tid: from py-spy's own profile names, else None. lost: samples or events that couldn't be read, and why.
    """

    name: str
    pid: int | None = None
    tid: int | None = None
    timed: bool = False
    rows: array[int] = field(default_factory=lambda: array("q"))
    lost: int = 0
    why: str = ""


def read_speedscope(path: Path, stacks: StackTable) -> list[Profile]:
    """Reads all profiles, each as far as it is sound. Raises InputError for anything that is no speedscope file."""
    try:
        data = json.loads(read_whole(path))
    except (ValueError, RecursionError) as error:
        where = f" at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{path}: not JSON{where}") from None
    shared = data.get("shared") if isinstance(data, dict) else None
    frames = shared.get("frames") if isinstance(shared, dict) else None
    profiles = data.get("profiles") if isinstance(data, dict) else None
    if not isinstance(frames, list) or not isinstance(profiles, list):
        raise InputError(f"{path}: not a speedscope file (no shared.frames, or no profiles)")
    reader = _Reader(frames, stacks, counts_only=str(data.get("exporter", "")).startswith("py-spy@"))
    found = [reader.profile(p) for p in profiles if isinstance(p, dict)]
    if len(found) != len(profiles):
        raise InputError(f"{path}: damaged: a profile is no object")
    return found


class _Reader:
    def __init__(self, frames: list[Any], stacks: StackTable, *, counts_only: bool) -> None:
        self.frames = frames
        self.stacks = stacks
        self.counts_only = counts_only  # py-spy writes 1/rate as weights and 0 as start: no times
        self._ids: dict[int, int | None] = {}

    def profile(self, data: dict[str, Any]) -> Profile:
        name = data.get("name")
        found = Profile(name[: fr.MAX_NAME] if isinstance(name, str) else "?")
        if self.counts_only and (match := _PY_SPY_NAME.match(found.name)):
            found.pid, found.tid = int(match[1]) if match[1] else None, int(match[2])
            found.name = match[3] or found.name
        unit = data.get("unit")
        scale = UNITS.get(unit) if isinstance(unit, str) else None
        if scale is None and unit != "none":
            return self._lose(found, f"its unit is {str(unit)[:40]!r}, which is no time")
        found.timed = scale is not None and not self.counts_only
        if data.get("type") == "sampled":
            self._sampled(data, found, scale or 1)
        elif data.get("type") == "evented":
            self._evented(data, found, scale or 1)
        else:
            return self._lose(found, "its type is neither sampled nor evented")
        return found

    @staticmethod
    def _lose(profile: Profile, why: str) -> Profile:
        profile.lost += 1
        profile.why = profile.why or why
        return profile

    def _sampled(self, data: dict[str, Any], found: Profile, scale: int) -> None:
        samples, weights = data.get("samples"), data.get("weights")
        if not isinstance(samples, list) or not isinstance(weights, list):
            self._lose(found, "no samples or no weights in it")
            return
        if len(samples) != len(weights):
            found.lost += abs(len(samples) - len(weights))
            found.why = f"{len(samples)} samples but {len(weights)} weights"
        at = _number(data.get("startValue")) or 0.0
        for sample, raw in zip(samples, weights, strict=False):
            weight = _number(raw)
            stack = self._stack(sample)
            if weight is None or weight < 0 or stack is None:
                self._lose(found, "a sample that names no known frames, or has no weight")
                continue
            start, end = round(at * scale), round((at + weight) * scale)
            at += weight
            if not -_LATEST_NS < start <= end < _LATEST_NS:
                self._lose(found, "a time out of range")
            elif found.timed:
                self._row(found, start, end, stack, 1)
            elif self.counts_only:
                self._row(found, 0, 0, stack, 1)
            else:
                self._row(found, 0, 0, stack, round(weight))

    def _evented(self, data: dict[str, Any], found: Profile, scale: int) -> None:
        events = data.get("events")
        if not isinstance(events, list):
            self._lose(found, "no events in it")
            return
        open_: list[tuple[int, int]] = []  # (frame index, stack)
        last: float | None = None
        for number, event in enumerate(events):
            kind, index, at = (event.get(k) for k in ("type", "frame", "at")) if isinstance(event, dict) else [None] * 3
            time = _number(at)
            frame_id = self._frame(index)
            sound = time is not None and frame_id is not None and (last is None or time >= last)
            if not sound or (kind == "C" and (not open_ or open_[-1][0] != index)) or kind not in ("O", "C"):
                found.lost += len(events) - number
                found.why = "an event that closes what isn't open, goes back in time or names no frame: read up to it"
                return
            assert time is not None and frame_id is not None and index is not None
            if open_ and last is not None and time > last:
                start, end = round(last * scale), round(time * scale)
                weight = end - start if found.timed else round(time - last)
                if not -_LATEST_NS < start <= end < _LATEST_NS:
                    self._lose(found, "a time out of range: read up to it")
                    return
                self._row(found, start, end, open_[-1][1], 1 if found.timed else weight)
            last = time
            if kind == "C":
                open_.pop()
            elif len(open_) >= MAX_DEPTH:
                self._lose(found, f"stacks deeper than {MAX_DEPTH}: read up to there")
                return
            else:
                open_.append((index, self._push(open_[-1][1] if open_ else ROOT, frame_id)))
        if open_:
            self._lose(found, "frames left open at its end")

    @staticmethod
    def _row(found: Profile, start: int, end: int, stack: int, count: int) -> None:
        if stack != ROOT and count > 0:
            found.rows.extend((start, end, stack, count))

    def _stack(self, sample: Any) -> int | None:
        if not isinstance(sample, list) or len(sample) > MAX_DEPTH:
            return None
        stack = ROOT
        for index in sample:
            frame_id = self._frame(index)
            if frame_id is None:
                return None
            stack = self._push(stack, frame_id)
        return stack

    def _push(self, parent: int, frame_id: int) -> int:
        if frame_id < 0:
            return parent  # a pseudo frame
        same = parent != ROOT and self.stacks.stack_frames[parent] == frame_id
        if same and fr.collapsed(self.stacks.frames[frame_id]):
            return parent
        return self.stacks.push(parent, frame_id)

    def _frame(self, index: Any) -> int | None:
        """frame_id of a shared frame; -1 for py-spy's process and thread frames; None if there is none."""
        if type(index) is not int or not 0 <= index < len(self.frames):
            return None
        if index not in self._ids:
            self._ids[index] = self._make(self.frames[index])
        return self._ids[index]

    def _make(self, data: Any) -> int | None:
        if not isinstance(data, dict) or not isinstance(data.get("name"), str):
            return None
        name, file, line = data["name"], data.get("file"), data.get("line")
        file = file if isinstance(file, str) else ""
        if not file and (fr.thread_frame(name) or fr.process_frame(name) is not None) and self.counts_only:
            return -1
        return self.stacks.frame(fr.make_frame(name, file, line if type(line) is int else None))


def _number(value: Any) -> float | None:
    """A finite number; times in ns beyond 2**53 lose less than a microsecond as float."""
    if type(value) not in (int, float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e19 else None

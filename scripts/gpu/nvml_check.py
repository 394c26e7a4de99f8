"""Holds the nvml collector against a real GPU: what it costs, and whether its values are what programs know they did.

    python scripts/gpu/nvml_check.py [--seconds 5]

Runs three torch programs one after the other (a matrix multiply, copies to the GPU, copies from it; pinned memory),
samples each with the real collector, and prints: CPU time of a pass; each call's cost; GPM's values beside the classic
calls'; PCIe traffic beside the bytes that the program itself counted; how its process was told; what the driver
doesn't tell; and what GPM answers for samples closer than its documentation allows. Exits with 1 if something differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pynvml

from perfscope.collectors.base import Context
from perfscope.collectors.nvml import NvmlCollector, owners
from perfscope.collectors.nvml.devices import Device, find, open_driver
from perfscope.collectors.nvml.gpm import LEAST_NS, METRICS, Gpm, supported
from perfscope.collectors.nvml.readings import readings
from perfscope.collectors.nvml.sampler import _process_samples
from perfscope.model.info import SessionInfo
from perfscope.model.session import Session
from perfscope.model.session_writer import SessionWriter
from perfscope.options import Options
from perfscope.procfs import in_first_pid_namespace

LOAD = """
import json, sys, time
sys.stdin.readline()
import torch
kind, seconds = sys.argv[1], float(sys.argv[2])
device = torch.device("cuda:0")
if kind == "multiply":
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    step, size = (lambda: torch.mm(a, a)), 0
else:
    size = 1 << 28
    host = torch.empty(size, dtype=torch.uint8).pin_memory()
    gpu = torch.empty(size, dtype=torch.uint8, device=device)
    source, target = (host, gpu) if kind == "to" else (gpu, host)
    step = lambda: target.copy_(source, non_blocking=True)
step(); torch.cuda.synchronize()
start, moved = time.monotonic_ns(), 0
while time.monotonic_ns() < start + seconds * 1e9:
    for _ in range(4):
        step(); moved += size
    torch.cuda.synchronize()
print(json.dumps({"start": start, "end": time.monotonic_ns(), "bytes": moved}), flush=True)
sys.stdin.readline()
"""

differs: list[str] = []


def judge(what: str, fine: bool) -> None:
    print(f"  {'ok     ' if fine else 'DIFFERS'} {what}")
    if not fine:
        differs.append(what)


@contextmanager
def load(kind: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOAD, kind, str(seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def recorded(kind: str, seconds: float, rate: int) -> None:
    """Runs one program, samples it, and holds what the counters say against what it did."""
    from perfscope.procfs import process as process_of

    print(f"\n{kind} for {seconds:g} s")
    with tempfile.TemporaryDirectory() as directory, load(kind, seconds) as program:
        writer = SessionWriter(Path(directory) / "s.perfscope")
        raw = writer.raw / "nvml"
        raw.mkdir()
        collector = NvmlCollector(Context(raw, Options(gpu_rate_hz=rate), lambda key, argv: None))
        start = time.monotonic_ns()
        collector.start([program.pid])
        dear = watch(collector, start)
        found = process_of(program.pid)
        assert found and program.stdout
        collector.process_started(found)
        go_on(program)
        line = program.stdout.readline()
        collector.stop()
        stop = time.monotonic_ns()
        if not line:
            judge("the program ran (is torch there?)", False)
            return
        did = json.loads(line)
        collector.read(writer, start, stop)
        info = SessionInfo(start_ns=start, stop_ns=stop, collectors={"nvml": collector.report}, clocks=collector.clocks)
        rows = Session.open(writer.finish(info)).table("counters").to_pylist()
        sampler = collector._sampler
        assert sampler
        judged(kind, did, rows, program.pid)
        cost = 100 * sampler.cpu_ns / (stop - start)
        print(f"  {sampler.passes / (stop - start) * 1e9:.2f} passes a second, {sampler.late} of them late")
        longest = sampler.longest_call_ns / 1e6
        print(f"  {sampler.cpu_ns / max(sampler.passes, 1) / 1e3:.0f} us of CPU a pass; longest call {longest:.2f} ms")
        means = sum(row["name"] == "gpu_busy_pct" for row in rows)
        apart = apart_s(rows)
        judge(
            f"{means} GPM values in {sampler.passes} passes, at most {apart:.2f} s apart once the target was seen",
            not sampler.uses_gpm or (means > 5 and apart < 1),
        )
        judge(f"power was read {seen(rows, did):.2f} times a second while it worked", seen(rows, did) > 0.9 * rate)
        print(f"  passes of more than 5 ms of CPU: {'; '.join(dear) or 'none'}")
        print(f"  setting up took {sampler.setup_cpu_ns / 1e6:.1f} ms of CPU")
        judge(f"own cost {cost:.2f} % of a core < 1 %", cost < 1)
        judge(f"at least 9 of 10 passes were on time ({sampler.late} late)", sampler.late * 10 <= sampler.passes)
        for note in collector.report.notes:
            print(f"  note: {note}")
        print(f"  {collector.report.version}; {json.dumps(collector.report.details['devices'])}")


def watch(collector: NvmlCollector, start: int) -> list[str]:
    """Fills with the passes that cost more than 5 ms of CPU, as while the target holds the driver's lock."""
    sampler, dear = collector._sampler, []
    assert sampler
    sample = sampler.sample

    def timed(full: bool = True) -> int:
        began, cpu = time.monotonic_ns(), time.thread_time_ns()
        taken = sample(full)
        spent, lasted = (time.thread_time_ns() - cpu) / 1e6, (time.monotonic_ns() - began) / 1e6
        if spent > 5:
            dear.append(f"at {(began - start) / 1e9:.2f} s {spent:.1f} ms of {lasted:.1f} ms" + " (full)" * full)
        return taken

    sampler.sample = timed  # type: ignore[method-assign]
    return dear


def apart_s(rows: list[dict[str, Any]]) -> float:
    """Longest interval of GPM's, in s, from when a process of the target was told on the device."""
    since = min((r["time_ns"] for r in rows if r["pid"] is not None), default=1 << 62)
    lengths = [2 * r["error_ns"] / 1e9 for r in rows if r["name"] == "gpu_busy_pct" and r["time_ns"] > since]
    return max(lengths, default=0.0)


def seen(rows: list[dict[str, Any]], did: dict[str, int]) -> float:
    """How often a second power was read while the program worked."""
    count: int = sum(r["name"] == "gpu_power_w" and did["start"] <= r["time_ns"] <= did["end"] for r in rows)
    return count / (did["end"] - did["start"]) * 1e9


def judged(kind: str, did: dict[str, int], rows: list[dict[str, Any]], pid: int) -> None:
    # The first and the last 0.3 s are left out: means of whole intervals, and the driver's own windows.
    inside = [r for r in rows if did["start"] + 3e8 < r["time_ns"] < did["end"] - 3e8]
    means = {
        name: statistics.fmean(r["value"] for r in inside if r["name"] == name)
        for name in sorted({r["name"] for r in inside})
    }
    for name, value in means.items():
        print(f"    {name:40} {value:,.3f}   ({sum(r['name'] == name for r in inside)} values)")
    judge("the target's process and its memory are told", any(r["pid"] == pid for r in inside))
    judge("some device is kept", bool(inside))
    if kind == "multiply":
        busy = means.get("gpu_busy_pct", means.get("gpu_utilization_pct"))
        judge(f"busy {busy} % while it multiplies without pause", busy is not None and busy > 95)
        return
    own = did["bytes"] / (did["end"] - did["start"]) * 1e9
    way, back = (
        ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
        if kind == "to"
        else ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
    )
    said, other = means.get(way), means.get(back)
    if said is None or other is None:
        judge("PCIe traffic is told", False)
        return
    # Headers count: 16 bytes or more for each 128 to 512 bytes moved.
    judge(
        f"{way} {said / 1e9:.2f} GB/s beside {own / 1e9:.2f} GB/s moved (ratio {said / own:.3f})",
        0.97 < said / own < 1.2,
    )
    judge(f"{back} is the smaller one ({other / 1e9:.2f} GB/s)", other < said / 3)


def cost_of(what: str, call: Callable[[], object], times: int = 30) -> None:
    walls, cpus = [], []
    for _ in range(times):
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        try:
            call()
        except pynvml.NVMLError as error:
            print(f"    {what:40} {error}")
            return
        walls.append(time.perf_counter_ns() - wall)
        cpus.append(time.thread_time_ns() - cpu)
    print(f"    {what:40} {statistics.median(walls) / 1e3:9.1f} us   CPU {statistics.fmean(cpus) / 1e3:9.1f} us")


def no_event(events: object) -> None:
    with suppress(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)


def costs(device: Device) -> None:
    print(f"\n{device.label}: each call, median time and mean CPU time")
    for reading in readings(device, False):
        cost_of(reading.what, lambda reading=reading: reading.call(device), 5 if "throughput" in reading.what else 30)  # type: ignore[misc]
    cost_of("processes", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(device.handle))
    cost_of("utilisation of processes", lambda: _process_samples(device, 0))
    events = pynvml.nvmlEventSetCreate()
    try:
        pynvml.nvmlDeviceRegisterEvents(device.handle, pynvml.nvmlEventTypeXidCriticalError, events)
        cost_of("Xid events, none", lambda: no_event(events))
    except pynvml.NVMLError as error:
        print(f"    Xid events: {error}")
    pynvml.nvmlEventSetFree(events)
    if not supported(device):
        print("    no GPM here")
        return
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    cost_of("GPM sample", lambda: pynvml.nvmlGpmSampleGet(device.handle, samples[0]))
    time.sleep(0.2)
    pynvml.nvmlGpmSampleGet(device.handle, samples[1])
    asked = list(METRICS.items())
    for name, some in (*((name, [(name, metric)]) for name, metric in asked), ("all", asked)):
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(some)
        request.sample1, request.sample2 = samples
        for place, (_, (metric, _)) in enumerate(some):
            request.metrics[place].metricId = metric
        cost_of(f"GPM metrics: {name}", lambda request=request: pynvml.nvmlGpmMetricsGet(request))  # type: ignore[misc]
    print(f"  GPM for samples closer than the {LEAST_NS / 1e6:.0f} ms of its documentation:")
    for apart in (0.005, 0.02, 0.05, 0.1, 0.2):
        pynvml.nvmlGpmSampleGet(device.handle, samples[0])
        time.sleep(apart)
        pynvml.nvmlGpmSampleGet(device.handle, samples[1])
        try:
            pynvml.nvmlGpmMetricsGet(request)
            told = {
                n: round(request.metrics[i].value, 2)
                for i, n in enumerate(METRICS)
                if not request.metrics[i].nvmlReturn
            }
        except pynvml.NVMLError as error:
            told = {"error": str(error)}
        print(f"    {apart * 1e3:5.0f} ms: {told}")
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)


def beside(device: Device, seconds: float) -> None:
    """GPM's values beside those of the classic calls, while a program multiplies."""
    if not supported(device):
        return
    print(f"\n{device.label}: GPM beside classic calls")
    with load("multiply", seconds + 60) as program:
        go_on(program)
        gpm = Gpm(device)
        classic = pynvml.nvmlDeviceGetUtilizationRates
        end = time.monotonic() + 90
        while classic(device.handle).gpu < 90 and time.monotonic() < end and program.poll() is None:
            time.sleep(0.1)
        time.sleep(1.5)
        for _ in range(6):
            time.sleep(0.2)
            means = gpm.read()
            if means:
                received = pynvml.nvmlDeviceGetPcieThroughput(device.handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
                told = {name: round(value, 2) for name, value in means.value.items()}
                print(f"    GPM {told}; utilisation {classic(device.handle).gpu} %, received {received} KB/s")
        listed = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device.handle)}
        held, namespace = sorted(owners.opened(program.pid)), Path("/proc/self/ns/pid").readlink()
        print(f"    the driver's processes {listed}; the program is {program.pid} and holds /dev/nvidia{held}")
        print(f"    {namespace}, taken for the host's: {in_first_pid_namespace()}")
        gpm.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=int, default=10)
    arguments = parser.parse_args()
    open_driver()
    devices, refused = find()
    for label, reason in refused.items():
        print(f"{label} can't be opened: {reason}")
    for device in devices[:1]:
        beside(device, arguments.seconds)
        costs(device)
    for device in devices:
        print(f"{device.label} doesn't tell: {device.calls.absent}")
    for kind in ("multiply", "to", "from"):
        recorded(kind, arguments.seconds, arguments.rate)
    print(f"\n{len(differs)} differ" + "".join(f"\n  {what}" for what in differs))
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())

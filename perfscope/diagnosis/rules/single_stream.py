"""single-stream: kernels too small to fill the GPU run one after the other on one stream.

Measured: the share of the steady part in which a kernel of few blocks runs, all on one stream. gives_back: a kernel of
b blocks leaves room for (limit - b) / limit of another, so that share of its time is the most that running beside
others could save. Whether the kernels depend on each other can't be told from a timeline: if so, nothing is saved.
"""

from __future__ import annotations

import numpy as np

from perfscope.diagnosis.describe import against, flame, label, observed
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.gpu_timeline import MEASURED, Gpu
from perfscope.diagnosis.gpu_verdict import code_of, gives_back, gpu_name, verdict, where
from perfscope.diagnosis.thresholds import Limits
from perfscope.merge.gpu_activity import KERNEL
from perfscope.model.finding import Finding, Severity, Verdict

RULE = "single-stream"
NEEDS = ("cuda",)


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts, limits, _judge)


def _judge(facts: Facts, limits: Limits, gpu: Gpu) -> Finding | str:
    rows, most = gpu.rows, int(limits["blocks"].value)
    kernels = np.flatnonzero(rows.kind == KERNEL)
    start, end = (np.clip(t[kernels], gpu.start_ns, gpu.end_ns) for t in (rows.start, rows.end))
    length, blocks, stream = end - start, rows.blocks[kernels], rows.stream[kernels]
    name = gpu_name(gpu)
    if not length.sum():
        return f"{name}: no kernels in the steady part"
    index = np.unique(stream, return_inverse=True)[1]
    of_stream = np.bincount(index, length)
    main = int(np.argmax(of_stream))
    on_main = 100 * float(of_stream[main]) / float(length.sum())
    small = (blocks > 0) & (blocks < most) & (length >= limits["kernel_us"].value * 1e3) & (index == main)
    spent = int(length[small].sum())
    room = float((length[small] * (1 - blocks[small] / most)).sum())
    share, gain = gpu.pct(spent), gives_back(facts, room)
    text = f"{name} ran kernels of fewer than {most} blocks on one stream in {share:.0f} % of the steady part"
    if (
        share < limits["small_pct"].value
        or on_main < limits["one_stream_pct"].value
        or (gain < limits["gives_back_pct"].value)
    ):
        return f"{text} ({on_main:.0f} % of kernel time on that stream)"
    frame, stack = code_of(facts, gpu, kernels[small], length[small])
    return Finding(
        RULE,
        f"Single stream: {text}" + (f", most by {label(frame)}" if frame else ""),
        Severity.INFO,
        where(facts, gpu, frame, stack),
        (
            against("small kernels, one after the other", share, limits["small_pct"], MEASURED),
            against("kernel time on the one stream", on_main, limits["one_stream_pct"], MEASURED),
            against("ceiling of elapsed time saved, if they are independent", gain, limits["gives_back_pct"], MEASURED),
            observed("blocks of these kernels, median", float(np.median(blocks[small])), "blocks", MEASURED),
            observed("duration of these kernels, median", float(np.median(length[small])) / 1e3, "us", MEASURED),
        ),
        round(gain, 1),
        "if they don't depend on each other, which a timeline can't tell, run them on several streams, batch them into "
        "one kernel, or capture them as parallel branches of a CUDA graph; a chain in which each needs the one before "
        f"gains nothing that way. {gpu.left_out}",
        flame(facts, "gpu"),
    )

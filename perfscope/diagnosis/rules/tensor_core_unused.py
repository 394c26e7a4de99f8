"""tensor-core-unused: a matrix multiply in 16-bit types that runs on the ordinary cores.

What a kernel computes is told from its name: libraries and people name matrix multiplies so. One limited by DRAM gains
nothing from tensor cores, and is left out.
"""

from __future__ import annotations

import re

from perfscope.diagnosis import kernels
from perfscope.diagnosis.describe import against, observed
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.kernel_rules import MEASURED, Sign, verdict
from perfscope.diagnosis.kernels import Kernel, MissingMetric
from perfscope.diagnosis.thresholds import Limits
from perfscope.model.finding import Verdict

RULE = "tensor-core-unused"
NEEDS = ("ncu",)

_MULTIPLY = re.compile(r"gemm|matmul|mat_?mul", re.IGNORECASE)
_SIXTEEN_BIT = re.compile(r"half|bfloat16|bf16|fp16|f16|hgemm|h16", re.IGNORECASE)
_FP16 = (
    "sm__inst_executed_pipe_fp16.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_fma_type_fp16.avg.pct_of_peak_sustained_elapsed",
)
_E = ".avg.pct_of_peak_sustained_elapsed"
# By preference: on Hopper the plain metric of the tensor pipe counts some FP32 work, too (2.9 % on a pure FMA loop).
TENSOR = (
    "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active" + _E,
    "sm__pipe_tensor_cycles_active" + _E,
    "sm__inst_executed_pipe_tensor" + _E,
)


def judge(kernel: Kernel, limits: Limits) -> Sign | None:
    if not _MULTIPLY.search(kernel.name):
        return None
    if not _SIXTEEN_BIT.search(kernel.name) and not any((kernel.get(metric) or 0.0) > 0 for metric in _FP16):
        return None
    tensor = next((value for metric in TENSOR if (value := kernel.get(metric)) is not None), None)
    if tensor is None:
        raise MissingMetric(TENSOR[0])
    dram, busy = kernel.need(kernels.DRAM), max(kernel.need(kernels.COMPUTE), kernel.need(kernels.MEMORY))
    if tensor >= limits["tensor_pct"].value or dram >= limits["dram_pct"].value or busy < limits["busy_pct"].value:
        return None
    return Sign(
        "a 16-bit matrix multiply that doesn't use the tensor cores",
        (
            against("tensor pipe active, of elapsed cycles", tensor, limits["tensor_pct"], MEASURED),
            against("DRAM throughput, of its ceiling", dram, limits["dram_pct"], MEASURED),
            observed("busiest of compute and memory, of its ceiling", busy, "%", MEASURED),
        ),
        100.0,
        "use a library's multiply (cuBLAS, CUTLASS, torch.matmul) or mma/wgmma instructions, with dimensions and "
        "addresses that are multiples of 16 bytes",
    )


def evaluate(facts: Facts, limits: Limits) -> Verdict:
    return verdict(RULE, facts)

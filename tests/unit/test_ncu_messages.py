"""What ncu says: its real lines, and what each failure is explained as."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.collectors.ncu.messages import Said, explain, parse

GOOD = """\
==PROF== Connected to process 2213 (/home/me/cuda_PartA)
==PROF== Profiling "rgbToGray" - 0: 0%....50%....100% - 31 passes
==PROF== Profiling "rgbToGray" - 1 (2/4): 0%....50%....100% - 31 passes
==PROF== Disconnected from process 2213
==PROF== Report: /home/me/partA.ncu-rep
"""
UNNUMBERED = """\
==PROF== Connected to process 1173 (/usr/bin/python3.12)
==PROF== Profiling "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT": 0%....50%....100% - 23 passes
==PROF== Profiling "nvjet_sm90_tst_48x64_64x15_4x2_h_bz_TNN": 0%....50%....100% - 23 passes
==PROF== Disconnected from process 1173
==PROF== Report: /tmp/w/rep.ncu-rep
"""
PERMISSION = """\
==PROF== Connected to process 9012 (/usr/local/bin/my-benchmark)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 9012
"""
OTHER_USER = """\
==PROF== Connected to process 7508 (/x)
==PROF== Profiling "risk_battle_kernel" - 0: 0%
==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is \
concurrently collecting profiling data. See https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq
==ERROR== Failed to profile "risk_battle_kernel" in process 7508
==PROF== Trying to shutdown target application
==ERROR== An error occurred while trying to profile.
==WARNING== No kernels were profiled.
"""
OLD_DRIVER = """\
==ERROR== An error was reported by the driver:
==ERROR== Cuda driver is not compatible with Nsight Compute.
==PROF== Connected to process 2305223 (/home/me/bin/python3.11)
==ERROR== The application returned an error code (11).
"""
NO_MATCH = """\
==PROF== Connected to process 36055 (/usr/bin/python3.10)
==PROF== Disconnected from process 36055
==WARNING== No kernels were profiled.
Available Kernels:
1. other_kernel
"""
ENDED_EARLY = """\
==PROF== Target process 36054 terminated before first instrumented API call.
==ERROR== The application returned an error code (1).
==WARNING== No kernels were profiled.
"""
INTERRUPTED = """\
==PROF== Connected to process 25093 (/x)
==PROF== Profiling "volta_h884gemm" - 18: 0%....50%....100% - 19 passes
==PROF== Profiling "volta_h884gemm" - 19: 0%..==PROF== Received signal
==PROF== Trying to shutdown target application
==ERROR== Failed to profile "volta_h884gemm" in process 25093
==ERROR== The application returned an error code (15).
==PROF== Report: /x.ncu-rep
"""
LOCK = """\
==PROF== Connected to process 2323392 (/x)
==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock. Please check that this process has write permissions
==ERROR== Failed to profile "vectorized_elementwise_kernel" in process 2323392
"""
METRIC = "==ERROR== Failed to find metric regex:^flop_count_sp\\.(sum|min|max|avg|pct|ratio|max_rate)$\n"
MIG = """\
==ERROR== An error was reported by the driver
==ERROR== Cannot lock GPU clock frequencies on MIG! Try locking the clocks externally
==ERROR== Failed to profile "k" in process 1
"""
MEMORY = """\
==PROF== Connected to process 5 (/x)
==WARNING== Backing up device memory in system memory. Kernel replay might be slow.
==ERROR== Unhandled C++ exception: bad allocation
==ERROR== Failed to profile "sparse_moe_d1_kernel"
"""


def told(text, timed_out=False, functions=("gemm",)):
    return explain(parse(text.splitlines()), timed_out=timed_out, limit_s=300, functions=functions)


def test_a_good_run_is_counted_and_needs_no_explanation():
    assert parse(GOOD.splitlines()) == Said(profiled=2, passes=31, connected=1)
    assert told(GOOD) is None


def test_launches_are_counted_where_ncu_doesnt_number_them():
    assert parse(UNNUMBERED.splitlines()) == Said(profiled=2, passes=23, connected=1)


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (PERMISSION, "no permission to read the GPU's performance counters", "NVreg_RestrictProfilingToAdminUsers=0"),
        (OTHER_USER, "another tool holds the GPU's counters", "dcgmi profile --pause"),
        (OLD_DRIVER, "driver is too old", "nvidia-smi"),
        (NO_MATCH, "no kernel named gemm was launched", "--ncu=only"),
        (ENDED_EARLY, r"ended before it used CUDA under ncu \(exit status 1\)", "output.txt"),
        ("", "ended before it used CUDA", "output.txt"),
        ("==ERROR== unrecognised option '--kernel-ids'. Use --help for further details.\n", "unrecognised", "log.txt"),
        (LOCK, "lock file", "sudo rm /tmp/nsight-compute-lock"),
        (METRIC, "doesn't know a metric", "newer Nsight Compute"),
        (MIG, "clocks on a MIG device", "--ncu-clocks none"),
        (MEMORY, "ran out of memory", "smaller batch"),
        (INTERRUPTED, "Failed to profile", "log.txt"),
        (GOOD + "==ERROR== The application returned an error code (3).\n", r"ended early \(exit status 3\)", "output"),
    ],
)
def test_each_failure_is_explained_with_what_mends_it(text, what, hint):
    import re

    trouble = told(text)
    assert re.search(what, trouble.what), trouble
    assert hint in trouble.hint


def test_a_hang_is_explained_by_the_limit():
    trouble = told(GOOD, timed_out=True)
    assert "didn't end within 300 s" in trouble.what
    assert "--ncu-limit 600" in trouble.hint


def test_the_cause_counts_before_the_hang():
    assert "performance counters" in told(PERMISSION, timed_out=True).what


def test_what_the_program_returned_is_kept():
    said = parse(INTERRUPTED.splitlines())
    assert (said.profiled, said.exit_code, said.stopped) == (1, 15, True)


@given(st.text(max_size=300))
def test_any_text_is_read(text):
    lines = [f"==PROF== {text}", f"==ERROR== {text}", text]
    explain(parse(lines), timed_out=False, limit_s=1, functions=())

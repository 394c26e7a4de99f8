"""Rules on measured kernels: recorded reports whose kernels have one planted limiter each, and made-up ones."""

import pyarrow as pa
import pytest
from ncu_helpers import KERNELS, launches, recorded, session_of, unpacked

from perfscope.collectors.ncu import read
from perfscope.collectors.ncu.launches import columns
from perfscope.diagnosis import kernels
from perfscope.diagnosis.engine import diagnose
from perfscope.diagnosis.kernel_rules import PRECEDENCE, cause
from perfscope.diagnosis.kernels import Kernel
from perfscope.diagnosis.rules import INFORMATIVE, RULES, needs
from perfscope.diagnosis.thresholds import defaults
from perfscope.model.finding import Severity
from perfscope.model.info import CollectorReport
from perfscope.model.kernels import kernel_key
from perfscope.recording.ncu_pass import _amend

MS = 1_000_000
PLANTED = {
    "copy_coalesced": "memory-bound",
    "copy_strided": "uncoalesced-access",
    "fma_bound": "compute-bound",
    "low_occupancy": "low-occupancy",
    "tiny_grid": "small-grid",
    "bank_conflict": "bank-conflict",
    "divergent": "divergence",
}


def causes(diagnosis):
    found = [(kernel_key(f.where.kernel), f.rule) for f in diagnosis.findings if f.where.kernel]
    assert len(found) == len(dict(found)), "one root cause a kernel"
    return dict(found)


@pytest.mark.parametrize("name", ["kernels.ncu-rep", "kernels_raw.csv"])
def test_each_kernel_has_exactly_its_planted_limiter(name, tmp_path):
    diagnosis = diagnose(session_of(unpacked(name, tmp_path), tmp_path))
    assert causes(diagnosis) == PLANTED
    for finding in diagnosis.findings:
        healthy = kernel_key(finding.where.kernel) in ("copy_coalesced", "fma_bound")
        assert (finding.severity == Severity.INFO) == healthy
        assert finding.where.device in ("NVIDIA H200", "0")
        assert finding.gives_back_pct is None
        assert healthy or "no GPU timeline" in finding.advice
        measured = {e.what for e in finding.evidence}
        assert {"compute throughput, of its ceiling", "achieved occupancy, of the device's maximum"} <= measured
        assert all(e.threshold_source for e in finding.evidence if e.threshold is not None)
    evidence = {f.rule: f.evidence[0] for f in diagnosis.findings}
    assert evidence["divergence"].value == pytest.approx(1.195, abs=0.01)
    assert evidence["low-occupancy"].value == pytest.approx(3.1, abs=0.1)
    assert evidence["bank-conflict"].value == pytest.approx(32, abs=0.2)  # a 32-way conflict takes 32 turns
    assert evidence["memory-bound"].value == pytest.approx(88.8, abs=0.1)
    title = next(f.title for f in diagnosis.findings if f.rule == "low-occupancy")
    assert "limited by shared memory" in title


def test_the_details_page_judges_what_it_carries_and_names_what_it_lacks(tmp_path):
    diagnosis = diagnose(session_of(unpacked("kernels_details.csv", tmp_path), tmp_path))
    found = causes(diagnosis)
    lacking = {"copy_strided": "low-sol", "bank_conflict": None}
    assert found == {k: v for k, v in (PLANTED | lacking).items() if v}
    verdicts = {v.rule: v for v in diagnosis.verdicts}
    for rule, metric in [
        ("uncoalesced-access", "lts__t_sectors"),
        ("bank-conflict", "l1tex__data_pipe_lsu_wavefronts"),
    ]:
        assert verdicts[rule].verdict == "not_evaluable"
        assert metric in verdicts[rule].why
    assert "could not be judged" in verdicts["memory-bound"].why
    strided = next(f for f in diagnosis.findings if f.rule == "low-sol")
    assert "not judged for it: uncoalesced-access" in strided.advice


def test_small_launches_of_a_decode_loop_are_small_grids(tmp_path):
    diagnosis = diagnose(session_of(unpacked("llm_raw.csv", tmp_path), tmp_path))
    rules = [f.rule for f in diagnosis.findings]
    assert set(rules) == {"small-grid", "low-sol"}
    # Of 24 kernels and configurations one has more blocks than the 132 multiprocessors.
    assert (rules.count("small-grid"), rules.count("low-sol")) == (23, 1)


def test_what_a_kernel_gives_back_is_its_share_of_time_times_what_it_wastes(tmp_path):
    names = list(KERNELS)
    # divergent (1.195 of 32 lanes work) runs for 200 of 1000 ms, tiny_grid for 100 ms beside it on another stream.
    runs = launches(0, [(names[6], 200 * MS)]) + launches(0, [(names[4], 100 * MS)])
    session = recorded(tmp_path / "both.perfscope", runs, 1000 * MS)
    measured, report = read(unpacked("kernels.ncu-rep", tmp_path))
    _amend(session, measured, report)
    diagnosis = diagnose(type(session).open(session.path))
    gains = {f.rule: f.gives_back_pct for f in diagnosis.findings}
    assert gains["divergence"] == pytest.approx(20 * (1 - 1.195 / 32), abs=0.1)
    assert gains["small-grid"] == pytest.approx(10 * (1 - 0.002), abs=0.01)
    assert gains["uncoalesced-access"] is None
    shares = {f.rule: e.value for f in diagnosis.findings for e in f.evidence if e.what == "share of all kernels' time"}
    assert shares == {"divergence": pytest.approx(66.7, abs=0.1), "small-grid": pytest.approx(33.3, abs=0.1)}
    divergent = next(f for f in diagnosis.findings if f.rule == "divergence")
    assert divergent.severity == Severity.MEDIUM
    assert divergent.see == f"perfscope flame {session.path} --weight gpu"


def test_overlapping_launches_of_a_kernel_count_once(tmp_path):
    name = list(KERNELS)[6]
    runs = launches(0, [(name, 100 * MS)]) + launches(50 * MS, [(name, 100 * MS)])
    session = recorded(tmp_path / "o.perfscope", runs, 1000 * MS)
    measured, report = read(unpacked("kernels_raw.csv", tmp_path))
    _amend(session, measured, report)
    found = {kernel_key(k.name): k for k in kernels.measured(type(session).open(session.path), 1000 * MS)}
    assert found["divergent"].elapsed_pct == pytest.approx(15)
    assert found["divergent"].gpu_pct == pytest.approx(100)
    assert found["tiny_grid"].elapsed_pct is None


BASE = {
    kernels.COMPUTE: 40.0, kernels.MEMORY: 40.0, kernels.DRAM: 30.0, kernels.L2: 30.0, kernels.L2_HIT: 80.0,
    kernels.OCCUPANCY: 90.0, kernels.OCCUPANCY_LIMIT: 100.0, kernels.GRID: 1000.0, kernels.SMS: 132.0,
    kernels.LANES: 32.0, kernels.DURATION: 1e6,
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed": 20.0,
    "lts__t_tag_requests.avg.pct_of_peak_sustained_elapsed": 20.0,
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed": 10.0,
    "l1tex__lsuin_requests.avg.pct_of_peak_sustained_elapsed": 10.0,
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 2.0,
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": 8.0,
    "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active.avg.pct_of_peak_sustained_elapsed": 0.0,
}  # fmt: skip
LD = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
ST = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"
CONFLICTS, WAVEFRONTS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
)
PIPE = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"
FP16 = "sm__inst_executed_pipe_fp16.avg.pct_of_peak_sustained_elapsed"
LONG = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
SHORT = "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio"


def judged(name="k(int)", without=(), **changed):
    metrics = {k: v for k, v in (BASE | changed).items() if k not in without}
    return cause(Kernel(name, (1000, 1, 1), (256, 1, 1), "GPU", 1, metrics), defaults())


@pytest.mark.parametrize(
    ("rule", "name", "changed"),
    [
        ("low-sol", "k", {}),
        ("memory-bound", "k", {kernels.MEMORY: 75.0, kernels.DRAM: 75.0}),
        ("memory-bound", "k", {kernels.MEMORY: 75.0, kernels.DRAM: 75.0, kernels.OCCUPANCY: 20.0}),
        ("compute-bound", "k", {kernels.COMPUTE: 75.0, kernels.OCCUPANCY: 20.0}),
        ("low-occupancy", "k", {kernels.OCCUPANCY: 69.0}),
        ("small-grid", "k", {kernels.GRID: 131.0, kernels.OCCUPANCY: 5.0}),
        ("low-sol", "k", {kernels.GRID: 132.0}),
        ("divergence", "k", {kernels.LANES: 12.0, kernels.COMPUTE: 90.0}),
        ("compute-bound", "k", {kernels.LANES: 17.0, kernels.COMPUTE: 90.0}),
        ("uncoalesced-access", "k", {LD: 12.5, ST: 100.0}),
        ("low-sol", "k", {LD: 100.0, ST: 0.0}),  # it stores nothing
        ("low-sol", "k", {LD: 12.5, ST: 100.0, kernels.MEMORY: 5.0}),  # it hardly touches memory
        ("uncoalesced-access", "k", {LD: 12.5, ST: 0.0, kernels.MEMORY: 92.0, kernels.DRAM: 92.0}),  # wasted DRAM
        ("bank-conflict", "k", {PIPE: 60.0, CONFLICTS: 31.0, WAVEFRONTS: 32.0}),
        ("low-sol", "k", {PIPE: 60.0, CONFLICTS: 0.0, WAVEFRONTS: 32.0}),
        ("bank-conflict", "k", {PIPE: 60.0, SHORT: 30.0}),
        ("low-sol", "k", {PIPE: 60.0, SHORT: 0.0}),  # many wavefronts, but not of shared memory
        ("l2-misses", "k", {kernels.L2_HIT: 20.0, LONG: 80.0}),
        ("low-sol", "k", {kernels.L2_HIT: 20.0}),  # misses that nobody waits for
        ("low-sol", "k", {kernels.L2_HIT: 20.0, LONG: 80.0, kernels.DRAM: 3.0}),
        ("memory-bound", "k", {kernels.L2_HIT: 20.0, LONG: 80.0, kernels.MEMORY: 80.0, kernels.DRAM: 80.0}),
        ("tensor-core-unused", "naive_hgemm(__half const*, __half*)", {}),
        ("tensor-core-unused", "gemm<float>(int)", {FP16: 9.0}),
        ("low-sol", "sgemm(float const*, float*)", {}),
        ("memory-bound", "hgemm(__half*)", {kernels.MEMORY: 80.0, kernels.DRAM: 80.0}),
        ("low-sol", "hgemm(__half*)", {list(BASE)[-1]: 30.0}),
    ],
)  # fmt: skip
def test_one_sign_makes_one_cause(rule, name, changed):
    assert judged(name, **changed)[0] == rule


def test_a_missing_metric_is_never_a_pass_and_never_zero():
    for missing in (kernels.COMPUTE, kernels.MEMORY):
        held, _, unjudged = judged(without=[missing])
        assert held is None
        assert unjudged["low-sol"] == missing
    held, _, unjudged = judged(without=[kernels.LANES], **{kernels.COMPUTE: 90.0})
    assert held is None  # busy with what? it can't be told
    assert unjudged == {"divergence": kernels.LANES, "compute-bound": kernels.LANES}


@pytest.mark.parametrize(
    ("limit", "words"),
    [("registers", "registers"), ("shared_mem", "shared memory"), ("warps", "block size"), ("barriers", "barriers")],
)
def test_the_limiter_of_occupancy_is_the_smallest(limit, words):
    blocks = dict.fromkeys(("registers", "shared_mem", "warps", "blocks", "barriers"), 9.0) | {limit: 2.0}
    changed = {f"launch__occupancy_limit_{n}": v for n, v in blocks.items()}
    rule, sign, _ = judged(**changed, **{kernels.OCCUPANCY: 24.0, kernels.OCCUPANCY_LIMIT: 25.0})
    assert rule == "low-occupancy"
    assert words in sign.what


def test_all_rules_of_the_order_are_registered():
    assert set(PRECEDENCE) <= set(RULES)
    assert {rule for rule in RULES if needs(rule) == ("ncu",)} == set(PRECEDENCE)
    assert {"memory-bound", "compute-bound"} <= INFORMATIVE


def test_without_measured_kernels_the_rules_say_how_to_get_them(tmp_path):
    session = recorded(tmp_path / "none.perfscope", launches(0, [("k", 5)]), 1000 * MS)
    verdicts = {v.rule: v for v in diagnose(session).verdicts if v.rule in PRECEDENCE}
    assert all(v.verdict == "not_evaluable" and "perfscope record --ncu -- CMD" in v.why for v in verdicts.values())
    _amend(session, [], CollectorReport("failed", "no permission", "sudo it"))
    again = diagnose(type(session).open(session.path))
    assert all("no permission" in v.why and "sudo it" in v.why for v in again.verdicts if v.rule in PRECEDENCE)


def test_medians_over_launches_and_devices_apart(tmp_path):
    measured, report = read(unpacked("kernels_raw.csv", tmp_path))
    session = recorded(tmp_path / "m.perfscope", launches(0, [("k", 5)]), 1000)
    for number, launch in enumerate(m for m in measured if kernel_key(m.name) == "tiny_grid"):
        launch.metrics[kernels.DURATION] = (100.0 * (number + 1), "ns")
        launch.device = "0"
    _amend(session, measured, report)
    found = {kernel_key(k.name): k for k in kernels.measured(type(session).open(session.path), 1000)}
    assert (found["tiny_grid"].metrics[kernels.DURATION], found["tiny_grid"].launches) == (150, 2)
    assert pa.table(columns(measured)).num_rows > 10_000

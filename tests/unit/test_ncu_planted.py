"""The planted kernels of scripts/gpu/ncu_planted.cu on an H200: limiters found, healthy controls left alone."""

import pytest
from ncu_helpers import session_of, unpacked

from perfscope.collectors import ncu
from perfscope.diagnosis.engine import diagnose
from perfscope.model.kernels import kernel_key

PLANTED = {
    "naive_hgemm": "tensor-core-unused",
    "random_gather": "l2-misses",
    "row_sums": "uncoalesced-access",
    "column_walk": "bank-conflict",
}
CONTROLS = {
    "tensor_hgemm": "tensor-core-unused",
    "cached_gather": "l2-misses",
    "stream_copy": "uncoalesced-access",
    "padded_walk": "bank-conflict",
}
SHAPES = {
    "naive_hgemm": {((64, 256, 1), (32, 8, 1))},
    "tensor_hgemm": {((128, 32, 1), (32, 4, 1))},
    "random_gather": {((1056, 1, 1), (256, 1, 1))},
    "cached_gather": {((1056, 1, 1), (256, 1, 1))},
    "stream_copy": {((131072, 1, 1), (256, 1, 1))},
    "row_sums": {((8192, 1, 1), (256, 1, 1))},
    "column_walk": {((1056, 1, 1), (256, 1, 1))},
    "padded_walk": {((1056, 1, 1), (256, 1, 1))},
}


@pytest.mark.parametrize("name", ["planted.ncu-rep", "planted_raw.csv"])
def test_every_kernel_is_measured_once(name, tmp_path):
    launches, report = ncu.read(unpacked(name, tmp_path))
    assert report.status == "ok"
    assert len(launches) == 8
    found = {}
    for launch in launches:
        found.setdefault(kernel_key(launch.name), set()).add((launch.grid, launch.block))
    assert found == SHAPES


@pytest.mark.parametrize("name", ["planted.ncu-rep", "planted_raw.csv"])
def test_each_limiter_is_found_and_no_control_is_accused_of_it(name, tmp_path):
    diagnosis = diagnose(session_of(unpacked(name, tmp_path), tmp_path))
    rules = {}
    for finding in diagnosis.findings:
        if finding.where.kernel:
            rules.setdefault(kernel_key(finding.where.kernel), set()).add(finding.rule)
    assert {kernel: rules[kernel] for kernel in PLANTED} == {kernel: {rule} for kernel, rule in PLANTED.items()}
    for kernel, rule in CONTROLS.items():
        assert rule not in rules.get(kernel, set())

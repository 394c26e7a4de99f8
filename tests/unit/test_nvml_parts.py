"""Parts of the nvml collector that need no library: its file, failing calls, whose process is whose."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.collectors.nvml import calls as calls_module
from perfscope.collectors.nvml import pacer as pacer_module
from perfscope.collectors.nvml import values
from perfscope.collectors.nvml.calls import Calls
from perfscope.collectors.nvml.collector import _hold_from
from perfscope.collectors.nvml.devices import Device, _cpus
from perfscope.collectors.nvml.owners import Owners, opened, visible
from perfscope.collectors.nvml.pacer import Pacer
from perfscope.errors import CollectorError

SECOND = 1_000_000_000


# The file

ANSWERS = st.lists(
    st.tuples(
        st.integers(0, 1 << 60), st.integers(0, 1 << 40), st.sampled_from(["gpu0", "gpu1/mig2"]),
        st.dictionaries(st.text(min_size=1), st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4),
        st.none() | st.integers(1, 1 << 22),
    )
)  # fmt: skip
tmp = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(path, answers):
    file = values.ValueFile(path)
    for before, length, device, named, pid in answers:
        file.write(before, before + length, device, named, pid)
    file.close()


@tmp
@given(ANSWERS)
def test_what_is_written_is_read_with_its_bracket(tmp_path, answers):
    written(tmp_path / "v", answers)
    rows = [row for batch in values.read(tmp_path / "v") for row in zip(*batch.values(), strict=True)]
    expected = [
        (name, device, pid, float(value)) for _, _, device, named, pid in answers for name, value in named.items()
    ]
    assert [row[2:] for row in rows] == expected
    brackets = [(before, before + length) for before, length, _, named, _ in answers for _ in named]
    for (time_ns, error_ns, *_), (before, after) in zip(rows, brackets, strict=True):
        assert time_ns - error_ns <= before <= after <= time_ns + error_ns
        assert 2 * error_ns <= after - before + 2


@tmp
@given(ANSWERS, st.data())
def test_a_cut_file_is_read_as_far_as_it_is_whole(tmp_path, answers, data):
    written(tmp_path / "v", answers)
    whole = (tmp_path / "v").read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    (tmp_path / "v").write_bytes(whole[:cut])
    read = sum(len(batch["value"]) for batch in values.read(tmp_path / "v"))
    lines = whole[:cut].count(b"\n")
    assert read == sum(len(named) for *_, named, _ in answers[:lines])


@tmp
@given(ANSWERS.filter(bool), st.data())
def test_a_damaged_file_gives_sound_rows_or_an_error_that_names_the_line(tmp_path, answers, data):
    written(tmp_path / "v", answers)
    damaged = bytearray((tmp_path / "v").read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "v").write_bytes(damaged)
    try:
        for batch in values.read(tmp_path / "v"):
            assert len({len(column) for column in batch.values()}) == 1
            assert all(0 <= time < 1 << 63 for time in batch["time_ns"])
    except CollectorError as error:
        assert "line " in str(error)


# Failing calls


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(calls_module, "time", SimpleNamespace(monotonic_ns=lambda: clock.now))
    return clock


def failing(code, made):
    def call():
        made.append(code)
        raise pynvml.NVMLError(code)

    return call


def test_a_passing_failure_is_tried_after_1_2_4_up_to_60_s(clock):
    calls, made, at = Calls(), [], []
    for second in range(400):
        clock.now = second * SECOND
        before = len(made)
        calls.read("power", failing(pynvml.NVML_ERROR_UNKNOWN, made))
        if len(made) > before:
            at.append(second)
    assert at[:8] == [0, 1, 3, 7, 15, 31, 63, 123]
    assert "times)" in calls.absent["power"]


@pytest.mark.parametrize("code", sorted(calls_module.NEVER_AGAIN))
def test_a_failure_that_stays_is_not_tried_again(clock, code):
    calls, made = Calls(), []
    for second in range(1000):
        clock.now = second * SECOND
        calls.read("power", failing(code, made))
    assert made == [code]


def test_a_call_that_works_again_gives_its_value_and_the_failure_stays_known(clock):
    calls = Calls()
    calls.read("power", failing(pynvml.NVML_ERROR_UNKNOWN, []))
    clock.now = 2 * SECOND
    answer = calls.read("power", lambda: 7)
    assert (answer.value, answer.before_ns, answer.after_ns) == (7, 2 * SECOND, 2 * SECOND)
    assert "power" in calls.absent


def test_a_lost_device_is_asked_nothing_more(clock):
    calls, made = Calls(), []
    calls.read("power", failing(pynvml.NVML_ERROR_GPU_IS_LOST, made))
    assert calls.read("temperature", lambda: made.append(1)) is None
    assert len(made) == 1


# The budget


class Passes:
    """Stands for a sampler whose full and cheap passes cost known CPU time."""

    def __init__(self, full_ns, cheap_ns, until):
        self.costs, self.until = {True: full_ns, False: cheap_ns}, until
        self.made, self.late, self.cpu_ns = [], 0, 0
        self.done = threading.Event()

    def warm_up(self):
        return time.monotonic_ns()

    def sample(self, full):
        began = time.monotonic_ns()
        end = time.thread_time_ns() + self.costs[full]
        while time.thread_time_ns() < end:
            pass
        self.made.append(full)
        if len(self.made) >= self.until:
            self.done.set()
        return began


def paced(passes, rate_hz=10):
    pacer = Pacer(passes, SimpleNamespace(flush=lambda: None), rate_hz)
    began = time.monotonic_ns()
    pacer.start()
    assert passes.done.wait(60)
    elapsed = time.monotonic_ns() - began
    assert pacer.stop(10)
    assert pacer.error is None
    return elapsed


def test_full_passes_are_made_as_far_as_the_budget_goes():
    passes = Passes(full_ns=20_000_000, cheap_ns=1_000_000, until=40)
    elapsed = paced(passes, rate_hz=100)  # ten times the budget of 10 Hz: 8.5 %
    assert passes.made[0] and 2 <= sum(passes.made) < 30
    spent = sum(passes.costs[full] for full in passes.made)
    assert spent <= 0.085 * elapsed * 4 / 3 + 3_000_000 + 20_000_000 + 40 * 1_000_000


def test_passes_go_on_long_before_an_expensive_one_is_paid_for():
    passes = Passes(full_ns=100_000_000, cheap_ns=0, until=4)
    elapsed = paced(passes)
    assert passes.made == [True, False, False, False]
    assert 0.0085 * elapsed < 100_000_000


def test_cheap_passes_that_cost_too_much_are_made_less_often_and_counted():
    passes = Passes(full_ns=10_000_000, cheap_ns=2_000_000, until=4)
    elapsed = paced(passes)
    assert passes.made == [True, False, False, False] and passes.late >= 2
    assert elapsed > 2 * 2_000_000 / 0.0085 * 2


def test_a_driver_that_hangs_at_once_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(pacer_module, "_FIRST_S", 0.01)
    answers = threading.Event()

    def hang():
        answers.wait(60)
        return time.monotonic_ns()

    passes = Passes(full_ns=0, cheap_ns=0, until=1)
    passes.warm_up = hang
    pacer = Pacer(passes, SimpleNamespace(flush=lambda: None), 10)
    pacer.start()  # returns
    assert not passes.made and not pacer.stop(0)
    answers.set()
    assert pacer.stop(10)


def test_constants_read_before_the_recording_hold_from_its_start():
    columns = {
        "name": ["gpu_power_w", "gpu_sm_clock_max_mhz", "gpu_sm_clock_max_mhz"],
        "time_ns": [10, 10, 300],
        "error_ns": [2, 3, 4],
    }
    _hold_from(100, columns)
    assert columns["time_ns"] == [10, 100, 300]
    assert columns["error_ns"] == [2, 93, 4]  # 100 ± 93 reaches back to 7, when that call began


# Whose process is whose


def test_on_the_host_ids_are_ids():
    owners = Owners(host=True)
    assert owners.match("gpu0", {10, 20}, {20, 30}, set()) == {20: 20}
    assert owners.used == {"gpu0"}
    assert not owners.by_exclusion


def test_on_the_host_another_program_is_never_taken_for_the_target():
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owners = Owners(host=True)
        assert owners.match("gpu0", {other.pid}, {1 << 22}, {1 << 22}) == {}
        assert owners.used == set()
    finally:
        other.communicate(b"\n")


def test_what_the_target_has_open_is_known_though_nobody_lists_it():
    owners = Owners(host=True)
    assert owners.match("gpu0", {1}, {5}, {5}) == {}
    assert (owners.used, owners.held, owners.known) == (set(), {"gpu0"}, {"gpu0"})
    assert owners.match("gpu1", {5}, {5}, set()) == {5: 5}
    assert owners.known == {"gpu1"}  # what is listed says more


def test_elsewhere_one_new_id_and_one_holder_are_the_same():
    owners = Owners(host=False)
    owners.before("gpu0", {7})
    assert owners.match("gpu0", {7}, {5}, {5}) == {}
    assert owners.used == set()
    assert owners.match("gpu0", {7, 900}, {5}, {5}) == {900: 5}
    assert owners.used == {"gpu0"}
    assert owners.match("gpu0", {7, 900, 901}, {5}, {5}) == {}
    assert owners.match("gpu0", {7, 900}, {5, 6}, {5, 6}) == {}


def test_where_the_driver_lists_no_processes_an_open_device_is_a_used_one():
    owners = Owners(host=True)
    assert owners.match("gpu0", None, {5}, {5}) == {}
    assert owners.used == {"gpu0"}
    assert owners.match("gpu1", None, {5}, set()) == {}
    assert owners.used == {"gpu0"}


def devices(*names):
    return [
        Device(f"gpu{i}", i, None, minor=i, facts={"name": name, "uuid": f"GPU-{i}abc"}) for i, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("setting", "order", "names", "labels"),
    [
        ("1", None, "AA", {"gpu1"}),
        ("0,1", None, "AA", {"gpu0", "gpu1"}),
        ("GPU-1", None, "AB", {"gpu1"}),
        ("0,-1,1", None, "AA", {"gpu0"}),  # what follows the first that is none is ignored
        ("", None, "AA", set()),
        ("1", None, "AB", None),  # CUDA may count the faster model first
        ("1", "PCI_BUS_ID", "AB", {"gpu1"}),
        (None, None, "AA", None),
    ],
)
def test_devices_that_a_process_may_see(setting, order, names, labels):
    env = {"CUDA_VISIBLE_DEVICES": setting, "CUDA_DEVICE_ORDER": order}
    process = subprocess.Popen(
        [sys.executable, "-uc", "print(); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={k: v for k, v in env.items() if v is not None},
    )
    assert process.stdout
    process.stdout.readline()  # the kernel shows an environment some time after exec has closed our end of the pipe
    try:
        assert visible(process.pid, devices(*names)) == labels
    finally:
        process.communicate(b"\n")


def test_a_process_that_is_gone_holds_and_sees_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert opened(process.pid) == set()
    assert visible(process.pid, devices("A")) is None


def test_a_mask_of_cpus_reads_as_the_kernel_writes_it():
    assert _cpus([0b1, 0]) == "0"
    assert _cpus([0, 0]) == ""
    assert _cpus(None) is None
    online = Path("/sys/devices/system/cpu/online").read_text().strip()
    numbers = [n for part in online.split(",") for n in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]
    words = [sum(1 << n % 64 for n in numbers if n // 64 == word) for word in range(64)]
    assert _cpus(words) == online

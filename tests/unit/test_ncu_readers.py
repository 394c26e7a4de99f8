"""Reports of Nsight Compute: three forms of one measurement against each other, and damaged ones."""

import random
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ncu_helpers import CRASHES, session_of, stand_in_reader, unpacked

from perfscope.collectors import ncu
from perfscope.collectors.ncu import binaryreport, container, driver, textreport
from perfscope.collectors.ncu.launches import to_base
from perfscope.diagnosis.engine import diagnose
from perfscope.errors import CollectorError, InputError
from perfscope.model.kernels import kernel_key
from perfscope.model.session import Session
from perfscope.recording.import_files import import_files

KERNELS = [
    "copy_coalesced", "copy_strided", "fma_bound", "low_occupancy", "tiny_grid", "bank_conflict", "divergent",
]  # fmt: skip
DURATION = "gpu__time_duration.sum"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ncu")
    names = ("kernels.ncu-rep", "kernels_raw.csv", "kernels_details.csv", "llm_raw.csv")
    return {name: unpacked(name, directory) for name in names}


def test_the_report_holds_what_the_program_launched(files):
    launches, report = ncu.read(files["kernels.ncu-rep"])
    assert [kernel_key(launch.name) for launch in launches] == KERNELS * 2
    assert launches[0].name == "copy_coalesced(float4 const*, float4*, unsigned long)"
    # As in the program: 256 Mi floats as float4 in blocks of 256; one block of 128; 4 blocks a multiprocessor.
    assert (launches[0].grid, launches[0].block) == ((262144, 1, 1), (256, 1, 1))
    assert (launches[4].grid, launches[4].block) == ((1, 1, 1), (128, 1, 1))
    assert (launches[3].grid, launches[3].block) == ((528, 1, 1), (64, 1, 1))
    assert launches[0].device == "NVIDIA H200"
    assert (report.status, report.events) == ("ok", 14)


@pytest.mark.parametrize("text", ["kernels_raw.csv", "kernels_details.csv"])
def test_csv_and_report_agree(files, text):
    exact, _ = ncu.read(files["kernels.ncu-rep"])
    printed, report = ncu.read(files[text])
    assert report.status == "ok"
    assert len(printed) == len(exact)
    compared = 0
    for one, other in zip(exact, printed, strict=True):
        assert kernel_key(one.name) == kernel_key(other.name)
        assert (one.grid, one.block) == (other.grid, other.block)
        for name in one.metrics.keys() & other.metrics.keys():
            value, unit = one.metrics[name]
            shown, shown_unit = other.metrics[name]
            assert shown_unit == unit or "" in (unit, shown_unit), name
            # What is printed is rounded: 12.84 %, 0.11 warps, 0.000004 Tbyte/s. Counters may be just below zero.
            rounded = {"ns": 0.0, "byte/s": 5.1e5}.get(unit, 0.0051)
            assert shown == pytest.approx(max(value, 0.0), rel=0.01, abs=rounded), name
            compared += 1
    assert compared > 300


def test_units_become_base_units():
    assert to_base(2.5, "Gbyte/second") == (2.5e9, "byte/s")
    assert to_base(497.22, "us") == (497220.0, "ns")
    assert to_base(3, "msecond") == (3e6, "ns")
    assert to_base(1.98, "Ghz") == (1.98e9, "hz")
    assert to_base(4, "byte/nsecond") == (4e9, "byte/s")
    assert to_base(7, "furlong") == (7, "furlong")


def test_csv_with_banner_lines_and_without_values(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text(
        "hello from the program\n==PROF== Connected to process 7 (/x)\n"
        '"ID","Process ID","Kernel Name","Block Size","Grid Size","Future Column","a.sum","b.pct",'
        '"gpu__time_duration.sum"\n'
        '"","","","","","","byte","%","msecond"\n'
        '"0","7","k(int)","(256, 1, 1)","(1, 2, 3)","new","8,400,907","n/a","1.5"\n'
        '"1","7","k(int)","256, 1, 1","1, 2, 3","new","","(!) n/a","nan"\n'
        '"2","7"\n'
    )
    launches, report = ncu.read(file)
    assert ncu.sniff(file.read_bytes()[:4096], file)
    assert launches[0].metrics == {"a.sum": (8400907.0, "byte"), DURATION: (1.5e6, "ns")}
    assert launches[0].grid == launches[1].grid == (1, 2, 3)
    assert launches[1].metrics == {}
    assert (report.status, report.lost_events) == ("partial", 1)
    assert "1 lines" in report.why


def test_a_csv_whose_header_comes_late_is_told_by_its_content(tmp_path, files):
    file = tmp_path / "late.csv"
    file.write_bytes(
        b"==PROF== Connected to process 1 (/x)\n" + b"noise\n" * 2000 + files["kernels_raw.csv"].read_bytes()
    )
    assert ncu.sniff(file.read_bytes()[:4096], file)
    assert len(ncu.read(file)[0]) == 14


def test_imported_sessions_hold_the_metrics(files, tmp_path):
    session = session_of(files["kernels.ncu-rep"], tmp_path)
    table = session.table("gpu_kernels").to_pandas()
    assert table["launch"].nunique() == 14
    strided = table[table["name"].str.startswith("copy_strided") & (table["metric"] == DURATION)]
    assert strided["value"].tolist() == pytest.approx([23.4e6, 23.4e6], rel=0.01)
    assert set(strided["unit"]) == {"ns"}
    assert session.info.collectors["ncu"].events == 14


def test_launches_of_two_files_stay_apart(files, tmp_path):
    import_files([files["kernels_raw.csv"], files["llm_raw.csv"]], tmp_path / "two.perfscope")
    table = Session.open(tmp_path / "two.perfscope").table("gpu_kernels").to_pandas()
    assert table["launch"].nunique() == 14 + 60
    assert (table.groupby("launch")["name"].nunique() == 1).all()


def test_the_container_counts_what_nvidias_reader_finds(files):
    found = container.examine(files["kernels.ncu-rep"])
    assert found == container.Container(14, None)


@pytest.mark.parametrize("share", [0.2, 0.55, 0.9, 0.999])
def test_a_report_cut_off_is_read_as_far_as_it_is_whole(files, tmp_path, share):
    data = files["kernels.ncu-rep"].read_bytes()
    file = tmp_path / "cut.ncu-rep"
    file.write_bytes(data[: int(share * len(data))])
    launches, report = ncu.read(file)
    assert 0 < len(launches) < 14
    assert report.status == "partial"
    assert "offset" in report.why


def test_a_report_without_its_first_launch_is_an_error_naming_the_offset(files, tmp_path):
    file = tmp_path / "cut.ncu-rep"
    file.write_bytes(files["kernels.ncu-rep"].read_bytes()[:30_000])
    with pytest.raises(InputError, match=r"cut\.ncu-rep.*offset"):
        ncu.read(file)


def _damaged(data, seed):
    random_ = random.Random(seed)
    damaged = bytearray(data)
    if seed % 4 == 0:
        del damaged[random_.randrange(len(data)) :]
    elif seed % 4 == 1:
        at = random_.randrange(len(data))
        del damaged[at : at + random_.randrange(1, 5000)]
    for _ in range(random_.choice((1, 10, 300))):
        if damaged:
            damaged[random_.randrange(min(len(damaged), random_.choice((200, 4000, len(data)))))] = random_.randrange(
                256
            )
    return bytes(damaged)


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_report_is_an_error_or_is_read_in_part(files, tmp_path, seed):
    file = tmp_path / "damaged.ncu-rep"
    file.write_bytes(b"NVR\0" + _damaged(files["kernels.ncu-rep"].read_bytes(), seed)[4:])
    try:
        session = session_of(file, tmp_path)
    except InputError as error:
        assert "damaged.ncu-rep" in str(error)
    else:
        report = session.info.collectors["ncu"]
        assert report.events <= 14
        assert report.events == 14 or report.status == "partial"
        diagnose(session)


@pytest.mark.parametrize("name", ["kernels_raw.csv", "kernels_details.csv", "llm_raw.csv"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_csv_is_an_error_or_is_read_in_part(files, tmp_path, name, seed):
    file = tmp_path / "damaged.csv"
    file.write_bytes(_damaged(files[name].read_bytes(), seed))
    path = tmp_path / "damaged.csv.perfscope"
    shutil.rmtree(path, ignore_errors=True)
    try:
        session = session_of(file, tmp_path)
    except InputError as error:
        assert "damaged.csv" in str(error)
    else:
        diagnose(session)


@pytest.fixture
def without_ncu(monkeypatch):
    def find():
        raise CollectorError("not installed")

    monkeypatch.setattr(driver, "find", find)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (CRASHES, r"NVIDIA's reader crashed on it \(SIGSEGV\)"),
        ("import sys\nsys.exit(1)\n", r"failed on it \(exit status 1\)"),
        ("def load_report(path): raise RuntimeError('no such\\nversion')\n", "can't read it: no such version"),
    ],
)
def test_a_reader_that_fails_is_said_as_that_with_another_way(files, tmp_path, monkeypatch, without_ncu, code, why):
    stand_in_reader(monkeypatch, tmp_path / "modules", code)
    with pytest.raises(InputError, match=why) as raised:
        ncu.read(files["kernels.ncu-rep"])
    assert "damaged" not in str(raised.value)  # the file is sound
    assert f"ncu --import {files['kernels.ncu-rep']} --csv --page raw > " in raised.value.hint
    cut = tmp_path / "cut.ncu-rep"
    cut.write_bytes(files["kernels.ncu-rep"].read_bytes()[:30_000])
    with pytest.raises(InputError, match=f"{why}; it is damaged or cut off at offset"):
        ncu.read(cut)


def test_without_any_reader_the_error_says_how_to_get_it(files, tmp_path, monkeypatch, without_ncu):
    stand_in_reader(monkeypatch, tmp_path / "modules", "raise ImportError('not installed')\n")
    with pytest.raises(InputError, match="needs NVIDIA's ncu-report") as raised:
        ncu.read(files["kernels.ncu-rep"])
    assert "pip install" in raised.value.hint


@pytest.mark.parametrize("code", [CRASHES, "raise ImportError('not installed')\n"])
def test_where_the_reader_fails_ncus_own_export_is_read(files, tmp_path, monkeypatch, code):
    stand_in_reader(monkeypatch, tmp_path / "modules", code)
    program = tmp_path / "ncu"
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\nexec cat {files["kernels_raw.csv"]}\n')
    program.chmod(0o755)
    monkeypatch.setattr(driver, "find", lambda: program)
    launches, report = ncu.read(files["kernels.ncu-rep"])
    assert [kernel_key(launch.name) for launch in launches] == KERNELS * 2
    assert (report.status, report.details["reader"]) == ("ok", "ncu --import")
    assert any("read through ncu's own export" in note for note in report.notes)
    asked = (tmp_path / "asked").read_text()
    assert "--csv --page raw" in asked
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(InputError, match=r"NVIDIA's reader crashed|needs NVIDIA's"):
        ncu.read(files["kernels.ncu-rep"])


def test_the_reader_has_no_other_c_plus_plus_runtime_beside_it(files, tmp_path, monkeypatch):
    # ncu-report 2025.3.1 crashes where one was loaded before it.
    mapped = tmp_path / "maps"
    code = f"open({str(mapped)!r}, 'w').write(open('/proc/self/maps').read())\ndef load_report(path): return []\n"
    stand_in_reader(monkeypatch, tmp_path / "modules", code)
    assert binaryreport.read(files["kernels.ncu-rep"]) == []
    assert "libc.so" in mapped.read_text()
    assert "libstdc++" not in mapped.read_text()


def test_the_readers_memory_is_bounded(files, tmp_path, monkeypatch, without_ncu):
    code = "def load_report(path): return bytearray(5 << 30)\n"
    stand_in_reader(monkeypatch, tmp_path / "modules", code)
    with pytest.raises(InputError, match="NVIDIA's reader can't read it"):
        ncu.read(files["kernels.ncu-rep"])


def test_numbers_of_ncu():
    assert textreport.number("8,400,907") == 8400907
    assert textreport.number("0") == 0
    for text in ("", "n/a", "(!) n/a", "no data", "nan", "inf"):
        assert textreport.number(text) is None

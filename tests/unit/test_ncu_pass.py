"""The pass with a stand-in for ncu: a program that is called as ncu is, runs the command, and leaves a real report."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from ncu_helpers import CRASHES, KERNELS, launches, recorded, stand_in_reader, unpacked

from perfscope.collectors.ncu import driver
from perfscope.model.session import Session
from perfscope.recording import ncu_pass
from perfscope.recording.launch import RunAs
from perfscope.recording.ncu_pass import Settings

MS = 1_000_000
PROFILED = "".join(f'==PROF== Profiling "k" - {n}: 0%....50%....100% - 23 passes\n' for n in range(14))
GOOD = f"==PROF== Connected to process 7 (/x)\n{PROFILED}==PROF== Disconnected from process 7\n"
STAND_IN = """\
#!{python}
import json, os, shutil, signal, subprocess, sys, time
if "--version" in sys.argv:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 1)")
    sys.exit()
if "--import" in sys.argv:
    {exported}
    sys.exit()
value = lambda name: sys.argv[sys.argv.index(name) + 1]
where = max(i for i, part in enumerate(sys.argv) if part.startswith("--")) + 2
json.dump(dict(argv=sys.argv, command=sys.argv[where:], env=dict(os.environ)), open({seen!r}, "w"))
{behaviour}
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes the `ncu` in PATH that logs `log`, then does `behaviour`."""

    def make(log=GOOD, behaviour="", exported="sys.exit(1)"):
        bin_dir = tmp_path / "bin"
        bin_dir.mkdir(exist_ok=True)
        report = unpacked("kernels.ncu-rep", tmp_path)
        write = f"open(value('--log-file'), 'w').write({log!r})\n"
        leave = f"subprocess.run(sys.argv[where:])\nshutil.copy({str(report)!r}, value('--export'))\n"
        program = bin_dir / "ncu"
        program.write_text(
            STAND_IN.format(
                python=sys.executable,
                seen=str(tmp_path / "seen.json"),
                behaviour=write + (behaviour or leave),
                exported=exported,
            )
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")
        return tmp_path / "seen.json"

    return make


@pytest.fixture
def session(tmp_path):
    """A recording in which the kernels of the report ran, copy_strided for nearly all the time."""
    runs = [(name, 920 if name.startswith("copy_strided") else 10) for name in KERNELS] * 30
    return recorded(tmp_path / "made.perfscope", launches(0, runs), 1000 * MS).path


def add(path, command=("true",), limit_s=30.0, **settings):
    seen = []
    report = ncu_pass.add(path, list(command), Settings(limit_s, **settings), lambda *p: seen.append(p))
    return report, Session.open(path), seen


def test_the_second_run_adds_kernels_to_the_session_and_says_what_they_cover(stand_in, session, tmp_path):
    seen = stand_in()
    out = tmp_path / "ran"
    report, after, _ = add(session, ["touch", str(out)])
    assert (report.status, report.why, report.events) == ("ok", None, 14)
    assert out.exists()
    asked = json.loads(seen.read_text())
    assert asked["command"] == ["touch", str(out)]
    argv = asked["argv"]
    assert argv[argv.index("--kernel-name") + 1] == "regex:(^|[ :])(copy_strided)($|[<(])"
    assert (argv[argv.index("--launch-skip") + 1], argv[argv.index("--launch-count") + 1]) == ("1", "2")
    assert not any(name.endswith("_INJECTION64_PATH") for name in asked["env"])
    # All seven kernels are in the stand-in's report, so all of the first run's time is covered.
    assert any("carried 100.0% of the first run's kernel time" in note for note in report.notes)
    assert report.version == "ncu 2025.3.1.0"
    assert report.details["replays a launch"] == 23
    assert after.info.collectors["ncu"] == report
    assert after.table("gpu_kernels").num_rows == after.info.tables["gpu_kernels"] > 10_000
    assert after.table("gpu_activity").num_rows == 7 * 30
    assert sorted(p.name for p in (session / "raw" / "ncu").iterdir()) == ["log.txt", "output.txt", "report.ncu-rep"]
    assert not list(session.rglob("*.new"))


def test_no_raw_keeps_nothing_of_it(stand_in, session):
    stand_in()
    shutil.rmtree(session / "raw", ignore_errors=True)
    report, after, _ = add(session, keep_raw=False)
    assert report.status == "ok"
    assert not (session / "raw").exists()
    assert after.table("gpu_kernels").num_rows


def test_a_run_that_hangs_is_stopped_with_all_it_started(stand_in, session, tmp_path, monkeypatch):
    monkeypatch.setattr(ncu_pass, "_GRACE_S", 0.3)
    pids = tmp_path / "pids"
    stand_in(
        behaviour=textwrap.dedent(f"""
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            child = subprocess.Popen(["sleep", "1000"])
            open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
            time.sleep(1000)
        """)
    )
    report, after, progress = add(session, limit_s=1.0)
    assert report.status == "failed"
    assert "didn't end within 1 s" in report.why
    assert "--ncu-limit" in report.hint
    assert progress[-1][:2] == (14, 2)
    assert after.table("gpu_kernels").num_rows == 0
    for pid in pids.read_text().split():
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]


def test_an_interrupted_ncu_keeps_what_it_measured(stand_in, session, tmp_path):
    report_file = unpacked("kernels.ncu-rep", tmp_path)
    stand_in(
        behaviour=textwrap.dedent(f"""
            def stop(*_):
                shutil.copy({str(report_file)!r}, value('--export'))
                sys.exit(1)
            signal.signal(signal.SIGINT, stop)
            while True: time.sleep(0.05)
        """)
    )
    report, after, _ = add(session, limit_s=1.0)
    assert (report.status, report.events) == ("partial", 14)
    assert "was stopped" in report.why
    assert after.table("gpu_kernels").num_rows


@pytest.mark.parametrize(
    ("log", "why", "hint"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "no permission", "NVreg_Restrict"),
        (
            "==PROF== Connected to process 1 (/x)\n==WARNING== No kernels were profiled.\n",
            "no kernel named",
            "--ncu=only",
        ),
        ("", "ended before it used CUDA", "output.txt"),
    ],
)
def test_failures_cost_the_pass_only_and_are_explained(stand_in, session, log, why, hint):
    stand_in(log, "sys.exit(1)")
    report, after, _ = add(session)
    assert report.status == "failed"
    assert why in report.why
    assert hint in report.hint
    assert after.info.collectors["cuda"].status == "ok"
    assert after.table("gpu_activity").num_rows == 210


def test_a_report_cut_off_is_used_as_far_as_it_goes(stand_in, session, tmp_path):
    report_file = unpacked("kernels.ncu-rep", tmp_path)
    stand_in(behaviour=f"open(value('--export'), 'wb').write(open({str(report_file)!r}, 'rb').read()[:700000])")
    report, _, _ = add(session)
    assert report.status == "partial"
    assert 0 < report.events < 14
    assert "offset" in report.why


def test_where_the_reader_crashes_ncus_export_is_read(stand_in, session, tmp_path, monkeypatch):
    stand_in_reader(monkeypatch, tmp_path / "modules", CRASHES)
    table = unpacked("kernels_raw.csv", tmp_path)
    stand_in(exported=f"sys.stdout.write(open({str(table)!r}).read())")
    report, after, _ = add(session)
    assert (report.status, report.events, report.details["reader"]) == ("ok", 14, "ncu --import")
    assert any("crashed on it (SIGSEGV): read through ncu's own export" in note for note in report.notes)
    assert after.table("gpu_kernels").num_rows > 10_000


def test_a_report_that_nothing_reads_is_kept(stand_in, session, tmp_path, monkeypatch):
    stand_in_reader(monkeypatch, tmp_path / "modules", CRASHES)
    stand_in(exported="os.kill(os.getpid(), signal.SIGSEGV)")
    report, after, _ = add(session)
    assert report.status == "failed"
    assert "crashed on it (SIGSEGV)" in report.why
    assert "damaged" not in report.why
    assert after.table("gpu_activity").num_rows == 210
    done = perfscope("record", "--ncu=only", "--no-raw", "-o", "x.perfscope", "--", "true", cwd=tmp_path)
    assert done.returncode == 0
    kept = tmp_path / "x.perfscope" / "raw" / "ncu" / "report.ncu-rep"
    assert kept.stat().st_size == (tmp_path / "kernels.ncu-rep").stat().st_size
    assert Session.open(tmp_path / "x.perfscope").info.collectors["ncu"].status == "failed"
    assert "ncu --import x.perfscope/raw/ncu/report.ncu-rep" in done.stderr


def test_without_ncu_the_session_says_how_to_get_it(session, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    report, _, _ = add(session)
    assert "not installed" in report.why
    assert "nsight-compute" in report.hint


def test_a_driver_that_refuses_counters_is_known_before_the_second_run(stand_in, session, tmp_path, monkeypatch):
    seen = stand_in()
    parameters = tmp_path / "params"
    parameters.write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(driver, "_PARAMETERS", parameters)
    report, _, _ = add(session, run_as=RunAs.named("nobody"))
    assert "no permission" in report.why
    assert "NVreg_RestrictProfilingToAdminUsers=0" in report.hint
    assert not seen.exists()
    parameters.write_text("RmProfilingAdminOnly: 0\n")
    assert driver.permitted(65534)


def test_the_second_run_is_the_users_own(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        open_to_all = Path(name)
        open_to_all.chmod(0o755)
        program = open_to_all / "ncu"
        program.write_text("#!/bin/sh\nid -un; id -Gn\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{name}:{os.environ['PATH']}")
        path = recorded(open_to_all / "made.perfscope", launches(0, [("k(int)", 5)] * 9), 1000 * MS).path
        report, _, _ = add(path, run_as=RunAs.named("nobody"))
        assert report.status == "failed"  # this ncu measures nothing
        assert (path / "raw" / "ncu" / "output.txt").read_text() == "nobody\nnogroup\n"
        program.chmod(0o700)
        report, _, _ = add(path, run_as=RunAs.named("nobody"))
        assert "can't be started as nobody: Permission denied" in report.why


def test_without_a_gpu_timeline_there_is_nothing_to_choose(stand_in, tmp_path):
    stand_in()
    path = recorded(tmp_path / "none.perfscope", [], 1000).path
    report, _, _ = add(path)
    assert report.status == "failed"
    assert "no GPU kernels to choose from (cuda ok)" in report.why


def perfscope(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "perfscope", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_only_that_pass_passes_on_output_and_exit_status(stand_in, tmp_path):
    stand_in(
        GOOD + "==ERROR== The application returned an error code (3).\n",
        "subprocess.run(sys.argv[where:])\n"
        f"shutil.copy({str(tmp_path / 'kernels.ncu-rep')!r}, value('--export'))\nsys.exit(1)",
    )
    done = perfscope("record", "--ncu=only", "-o", "x.perfscope", "--", "sh", "-c", "echo hello; exit 3", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "hello\n")
    session = Session.open(tmp_path / "x.perfscope")
    assert session.info.exit_status == 3
    assert session.info.collectors["ncu"].events == 14
    told = perfscope("diagnose", "x.perfscope", cwd=tmp_path)
    assert "copy_strided" in told.stdout
    assert told.returncode == 0


def test_a_running_process_cant_be_measured_and_why(tmp_path):
    done = perfscope("record", "--ncu", "-p", str(os.getpid()), cwd=tmp_path)
    assert done.returncode == 2
    assert "must start the program" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mode", "says"), [("full", "ncu --set full -k NAME -c 1 -o FILE CMD"), ("ful", "no such mode")]
)
def test_other_modes_are_refused_with_what_to_do_instead(tmp_path, mode, says):
    done = perfscope("record", f"--ncu={mode}", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr


def test_without_gpu_work_the_command_runs_once_and_its_status_counts(stand_in, tmp_path):
    stand_in()
    command = ("sh", "-c", "echo ran; exit 4")
    done = perfscope("record", "--collect", "pyspy", "--ncu", "-o", "x.perfscope", "--", *command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "ran\n")
    assert "no GPU kernels to choose from (cuda was not recorded)" in done.stderr
    assert Session.open(tmp_path / "x.perfscope").info.collectors["ncu"].status == "failed"


def test_a_command_that_was_interrupted_is_not_started_again(stand_in, tmp_path):
    seen = stand_in()
    command = ("sh", "-c", "kill -INT $$")
    done = perfscope("record", "--collect", "pyspy", "--ncu", "-o", "x.perfscope", "--", *command, cwd=tmp_path)
    assert done.returncode == 130
    assert "no second run" in done.stderr
    assert not seen.exists()


def test_the_doctor_says_whether_it_can_run(stand_in, tmp_path):
    rows = json.loads(perfscope("doctor", "--json", cwd=tmp_path).stdout)["checks"]
    (row,) = [r for r in rows if r["collector"] == "ncu"]
    assert row["state"] in ("ok", "degraded", "unavailable")
    assert row["state"] == "ok" or (row["why"] and row["fix"])


def test_another_cupti_user_in_the_environment_is_named(stand_in, tmp_path):
    stand_in()
    done = subprocess.run(
        [sys.executable, "-m", "perfscope", "record", "--ncu=only", "-o", "x.perfscope", "--", "true"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "CUDA_INJECTION64_PATH": "/opt/other.so"},
    )  # fmt: skip
    assert done.returncode == 3
    assert "CUDA_INJECTION64_PATH is set" in done.stderr
    assert "unset CUDA_INJECTION64_PATH" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_perfscope_that_is_killed_leaves_nothing_running(stand_in, tmp_path, number):
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    stand_in(
        behaviour=textwrap.dedent(f"""
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            end = open({str(fifo)!r}, "w")
            end.write("up"); end.flush()
            time.sleep(1000)
        """)
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "perfscope", "record", "--ncu=only", "-o", "x.perfscope", "--", "true"],
        cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    with fifo.open() as started:
        assert started.read(2) == "up"
        process.send_signal(number)
        process.wait(30)
        assert started.read() == ""  # its end of the pipe closes when it is gone
    assert not (tmp_path / "x.perfscope").exists()

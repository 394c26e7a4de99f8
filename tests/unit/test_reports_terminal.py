import io
import re
from pathlib import Path

import pytest
import reports_helpers as helpers
from rich.console import Console

from perfscope.merge import build_tree
from perfscope.model.finding import Diagnosis, Evidence, Finding, Severity, Verdict, Where
from perfscope.model.info import CollectorReport
from perfscope.model.session import Session
from perfscope.reports import markdown, terminal

HOSTILE = "[bold]x[/bold]\x1b[2J|`<b>\n# @org *e* [a](http://evil)"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return helpers.session(tmp_path / "serve.perfscope")


def shown(show, width: int = 80, tty: bool = False) -> str:
    out = io.StringIO()
    show(Console(file=out, width=width, force_terminal=tty, color_system="standard" if tty else None))
    return out.getvalue()


def hostile() -> Diagnosis:
    where = Where(process=HOSTILE, thread=HOSTILE, stack=(HOSTILE,), file=HOSTILE, line=1, function=HOSTILE)
    evidence = (Evidence(HOSTILE, 1, HOSTILE, 2, HOSTILE, HOSTILE),)
    finding = Finding("r", HOSTILE, Severity.CRITICAL, where, evidence, 5, HOSTILE, HOSTILE)
    return Diagnosis("s", (Verdict("r", "flagged", HOSTILE, (finding,)), Verdict(HOSTILE, "ok", HOSTILE)), (finding,))


def test_the_headline_gives_duration_clocks_losses_and_cost(session: Session) -> None:
    text = shown(lambda console: terminal.print_headline(session, console))
    assert text.splitlines() == [
        "serve.perfscope   32.4 s   python serve.py --port 8000 (pid 4121, 2 threads),",
        "java Gateway (pid 4098, 1 thread)",
        "clocks    ebpf exact, jfr ±10.0 us, pyspy ±640 us (a look every 10.0 ms)",
        "lost      12 of 1.20 M events, not known for jfr, 3 late samples",
        "own cost  0.9 % of one CPU (292 ms)",
    ]


def test_show_says_of_every_collector_what_it_is_worth(session: Session) -> None:
    text = shown(lambda console: terminal.print_session(session, console))
    for words in (
        "the JVM was killed; read as far as it goes",
        "310 events, losses not known",
        "1.20 M events, 12 lost, own CPU 90.0 ms",
        "no NVIDIA driver on this host",
        "install the driver: apt-get install nvidia-driver",
        "3 torn stacks of 2,410 left out",
        "target exited, exit status 0",
    ):
        assert words in text
    java, python = (next(x for x in text.splitlines() if x.startswith(pid)) for pid in ("4098", "4121"))
    assert java.split() == ["4098", "java", "1", "unknown", "java", "Gateway"]
    assert python.split()[:5] == ["4121", "python", "2", "2.50", "s"]
    assert "rows   2  processes\n       3  threads\nempty  frames, stacks, samples" in text


def test_a_diagnosis_puts_measured_values_beside_thresholds(session: Session) -> None:
    text = shown(lambda console: terminal.print_diagnosis(helpers.diagnosis(), session, console))
    assert "1 HIGH GIL contention gives back up to 41.2 %" in [" ".join(line.split()) for line in text.splitlines()]
    flat = " ".join(text.split())
    assert "why 78.9 s waited for the GIL (threshold 5.00 s; waits, eBPF, exact)" in flat
    assert "at worker-0 (tid 4130) in python serve.py (pid 4121) tokenizer.py:88 encode" in flat
    assert "see  perfscope flame serve.perfscope --weight off-cpu --thread 'worker-*'" in text
    assert text.splitlines()[-1] == "ok  2 rules    not evaluable  1 (gc-pause)    details: --all"


def test_all_says_why_for_every_rule(session: Session) -> None:
    text = shown(lambda console: terminal.print_diagnosis(helpers.diagnosis(), session, console, True), 100)
    assert "ok  lock-contention  waited 0.2 % for locks, under 5 %" in text
    assert "threshold: 5 % of thread time" in text
    assert "not evaluable  gc-pause  no JFR events; run the target on a JVM with --collect jfr" in text


def test_no_finding_is_not_said_to_be_healthy_beyond_what_was_evaluated(session: Session) -> None:
    unknown = Verdict("gc-pause", "not_evaluable", "no JFR events")
    nothing = Diagnosis("s", (unknown,), ())
    text = shown(lambda console: terminal.print_diagnosis(nothing, session, console))
    assert "nothing could be judged: no rule had the data that it needs" in text
    assert "ok  0 rules    not evaluable  1 (gc-pause)" in text
    assert "Nothing could be judged" in markdown.diagnosis(nothing, session)
    healthy = Diagnosis("s", (unknown, Verdict("disk-wait", "ok", "waited 0.1 %")), ())
    text = shown(lambda console: terminal.print_diagnosis(healthy, session, console))
    assert "no bottleneck found by the rules that could be evaluated" in text


def test_a_diagnosis_says_which_tools_failed(session: Session) -> None:
    session.info.collectors["ebpf"] = CollectorReport("failed", "no \x1b[2J right")
    session.info.collectors["jfr"] = CollectorReport("partial", "the JVM was killed")
    text = shown(lambda console: terminal.print_diagnosis(helpers.diagnosis(), session, console))
    assert "missing  ebpf failed: no \\x1b[2J right" in text
    assert "         jfr partial: the JVM was killed" in text
    assert "missing: ebpf failed: no" in markdown.diagnosis(helpers.diagnosis(), session)


def test_the_cpu_time_of_a_cut_session_is_that_of_its_part() -> None:
    """Its sched rows reach over its edges; the tree, built for its window, knows how long each thread ran."""
    session = Session.open(Path(__file__).parents[1] / "data" / "gpu" / "planted" / "pcie_full.perfscope")
    tree = build_tree(session)
    text = shown(lambda console: terminal.print_session(session, console))
    told = re.search(r"^445 +python +\d+ +([\d.]+) (m?s) ", text, re.MULTILINE)
    assert told
    seconds = float(told[1]) * (1e-3 if told[2] == "ms" else 1)
    assert seconds == pytest.approx(int(tree.weights["cpu"].sum()) / 1e9, rel=0.01)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_piped_text_is_plain_and_fits(session: Session, width: int) -> None:
    for diagnosis in (helpers.diagnosis(), hostile()):
        text = shown(lambda console, d=diagnosis: terminal.print_diagnosis(d, session, console, True), width)
        assert "\x1b" not in text
        lines = [line for line in text.splitlines() if not line.startswith("     see")]  # a command to be copied
        assert all(len(line) <= width and line == line.rstrip() for line in lines)


def test_names_from_outside_neither_format_nor_steer_a_terminal(session: Session) -> None:
    text = shown(lambda console: terminal.print_diagnosis(hostile(), session, console, True), 110, tty=True)
    assert "\x1b[2J" not in text
    assert "[bold]x[/bold]\\x1b[2J" in text


def test_markdown_has_the_same_figures(session: Session) -> None:
    text = markdown.diagnosis(helpers.diagnosis(), session)
    assert "| 1 | high | **GIL contention** | 41.2 % | worker-0 (tid 4130)  in python serve.py (pid 4121)" in text
    assert "| waited for the GIL | 78.9 s | 5.00 s | waits, eBPF, exact; threshold: 5 % of thread time |" in text
    assert "| gc-pause | not evaluable | no JFR events; run the target on a JVM with --collect jfr |" in text


def test_markdown_from_hostile_names_stays_text(session: Session) -> None:
    lines = markdown.diagnosis(hostile(), session).splitlines()
    row = next(line for line in lines if line.startswith("| 1 |"))
    cells = row.replace("\\|", "").split("|")
    assert len(cells) == 7
    for token in ("<b>", " @org", "*e*", "[a]", "http://"):
        assert token not in row.replace("**", "")
    assert sum(line.startswith("# ") for line in lines) == 0

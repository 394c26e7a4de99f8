"""A diagnosis as Markdown, for the summary page of a CI run."""

from __future__ import annotations

import re

from perfscope.model.finding import Diagnosis, Finding
from perfscope.model.session import Session
from perfscope.reports.terminal import evidence_words, gap_words, outcome_words, where_words
from perfscope.reports.units import clocks, duration, percent, printable

_SPECIAL = re.compile(r"[\\`*_\[\]<>#|~&@]|(?<=:)/(?=/)|(?<=www)\.")


def diagnosis(diagnosis: Diagnosis, session: Session) -> str:
    """GitHub-flavoured Markdown. Names from outside are escaped: they can't format, link, mention or break out."""
    info = session.info
    lines = [
        f"## perfscope: {_escape(session.path.name or session.path.resolve().name)}",
        "",
        f"{duration(info.stop_ns - info.start_ns)} of {_code(' '.join(info.command) or 'running processes')}  ",
        f"clocks: {_escape(clocks(info))}",
        *(f"  \nmissing: {_escape(gap)}" for gap in gap_words(info)),
        "",
    ]
    if diagnosis.findings:
        lines += ["| # | severity | finding | gives back up to | where |", "|--:|---|---|--:|---|"]
        for number, finding in enumerate(diagnosis.findings, 1):
            gives = "" if finding.gives_back_pct is None else percent(finding.gives_back_pct)
            place = _escape(where_words(finding.where))
            lines.append(
                f"| {number} | {finding.severity} | **{_escape(finding.title)}** | {_escape(gives)} | {place} |"
            )
        lines.append("")
        for number, finding in enumerate(diagnosis.findings, 1):
            lines += _finding(number, finding)
    else:
        lines += [f"{outcome_words(diagnosis).capitalize()}.", ""]
    rest = [v for v in diagnosis.verdicts if v.verdict != "flagged"]
    if rest:
        lines += [
            "<details><summary>Rules that flagged nothing</summary>",
            "",
            "| rule | verdict | why |",
            "|---|---|---|",
        ]
        lines += [f"| {_escape(v.rule)} | {v.verdict.replace('_', ' ')} | {_escape(v.why)} |" for v in rest]
        lines += ["", "</details>", ""]
    return "\n".join(lines)


def _finding(number: int, finding: Finding) -> list[str]:
    lines = [f"### {number}. {_escape(finding.title)}", ""]
    if finding.evidence:
        lines += ["| evidence | measured | threshold | source |", "|---|--:|--:|---|"]
        for item in finding.evidence:
            value, threshold = evidence_words(item)
            source = item.measured_by
            if item.threshold_source:
                source += f"; threshold: {item.threshold_source}"
            lines.append(f"| {_escape(item.what)} | {_escape(value)} | {_escape(threshold)} | {_escape(source)} |")
        lines.append("")
    lines.append(f"**Try:** {_escape(finding.advice)}")
    if finding.see:
        lines += ["", f"**See:** {_code(finding.see)}"]
    return [*lines, ""]


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", printable(text))


def _code(text: str) -> str:
    """A code span whose fence is longer than any run of backticks inside."""
    text = printable(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"

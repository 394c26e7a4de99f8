"""Runs every rule over a session and ranks what they find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfscope.diagnosis.describe import not_evaluable
from perfscope.diagnosis.facts import Facts
from perfscope.diagnosis.rules import INFORMATIVE, RULES, load, needs
from perfscope.diagnosis.thresholds import Thresholds, defaults, severity
from perfscope.merge.slices import ThreadSlices
from perfscope.model.finding import Diagnosis, Finding, Severity, Verdict
from perfscope.model.session import Session


def diagnose(session: Session, thresholds: Thresholds | None = None) -> Diagnosis:
    """All verdicts on a session. Raises SessionError if a table can't be read."""
    from perfscope.merge.timeline import slices_of

    return judge(session, list(slices_of(session)), thresholds or defaults())


def judge(session: Session, threads: Sequence[ThreadSlices], thresholds: Thresholds) -> Diagnosis:
    """All verdicts on a session whose threads' time is already cut into slices."""
    facts = Facts(session, threads, thresholds)
    verdicts = []
    for rule in RULES:
        verdict = load(rule)(facts, thresholds[rule])
        verdicts.append(_rated(_doubted(verdict, session, thresholds), thresholds))
    return Diagnosis(
        session=str(session.path),
        verdicts=tuple(verdicts),
        findings=tuple(sorted((f for v in verdicts for f in v.findings), key=_rank)),
    )


def _doubted(verdict: Verdict, session: Session, thresholds: Thresholds) -> Verdict:
    """An ok verdict on records of which too many were lost is none: what was lost could have been the bottleneck."""
    limit = thresholds["evaluation"]["lost_pct"].value
    for name in needs(verdict.rule) if verdict.verdict == "ok" else ():
        report = session.info.collectors.get(name)
        if report is None or not report.lost_events:
            continue
        lost = 100 * report.lost_events / (report.lost_events + (report.events or 0))
        if lost > limit:
            why = f"{name} lost {lost:.1f} % of its events; in the rest: {verdict.why}"
            return not_evaluable(verdict.rule, why, "perfscope record with fewer collectors or a lower rate")
    return verdict


def _rated(verdict: Verdict, thresholds: Thresholds) -> Verdict:
    def rate(finding: Finding) -> Finding:
        if verdict.rule in INFORMATIVE:
            return replace(finding, severity=Severity.INFO)
        return replace(finding, severity=severity(finding.gives_back_pct, thresholds))

    return replace(verdict, findings=tuple(rate(f) for f in verdict.findings))


def _rank(finding: Finding) -> tuple[int, float]:
    """Faults before information, then what gives back most; an unknown gain stands behind all known ones."""
    gain = finding.gives_back_pct
    return (0 if finding.severity > Severity.INFO else 1, 1.0 if gain is None else -gain)

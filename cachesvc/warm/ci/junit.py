"""Write reports in the form of JUnit, which GitLab, Jenkins and others show as tests. Pure."""

from __future__ import annotations

from xml.etree import ElementTree

from cachesvc_client.wire.errors import printable

from ..report import render as reports
from ..report.merged import MergedReport
from ..report.read import RunReport
from ..verdict.results import Outcome

_SUITE = "cachesvc warm"


def junit(report: MergedReport) -> str:
    """Return a test suite for each run, with a test case for each target. One that failed or is cold is a
    failure; a run without targets and an absent report are an error."""
    root = ElementTree.Element("testsuites", name=_SUITE)
    for run in report.runs:
        cases = [_case(outcome, run) for outcome in run.outcomes]
        _add_suite(root, run.runner, cases or [_error(run.error.text if run.error else "no targets")])
    for runner in report.absent:
        _add_suite(root, runner, [_error("no report: its job failed, or did not keep it")])
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_suite(root: ElementTree.Element, runner: str, cases: list[ElementTree.Element]) -> None:
    counts = {
        kind: str(sum(case.find(tag) is not None for case in cases))
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    attributes = {"name": printable(runner), "tests": str(len(cases)), **counts}
    ElementTree.SubElement(root, "testsuite", attributes).extend(cases)


def _case(outcome: Outcome, run: RunReport) -> ElementTree.Element:
    name = run.head.name if run.head else _SUITE
    case = ElementTree.Element("testcase", classname=name, name=outcome.target, time=f"{outcome.seconds:.3f}")
    if run.head is not None:
        case.set("file", printable(run.head.spec))
    details = "\n".join(map(printable, reports.details(outcome)))
    if outcome.status == "cancelled":
        ElementTree.SubElement(case, "skipped", message="interrupted")
    elif not outcome.good:
        message = printable("; ".join(outcome.reasons))
        ElementTree.SubElement(case, "failure", message=message, type=outcome.status).text = details
    elif details:
        ElementTree.SubElement(case, "system-out").text = details
    return case


def _error(text: str) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=_SUITE, name=_SUITE)
    ElementTree.SubElement(case, "error", message=printable(text))
    return case

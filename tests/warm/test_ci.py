"""Test what CI systems are shown of a report: annotations, outputs, comments, and files of other forms."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cachesvc.warm.ci.annotations import Annotation, annotate
from cachesvc.warm.ci.code_quality import code_quality
from cachesvc.warm.ci.github import annotation_lines, fitting, unobeyed, write_outputs
from cachesvc.warm.ci.junit import junit
from cachesvc.warm.ci.pull_request import PullRequest
from cachesvc.warm.report import render as report
from cachesvc.warm.report.head import target_lines
from cachesvc.warm.report.merged import MergedReport, merge_reports
from cachesvc.warm.report.read import read_report
from cachesvc.warm.verdict.results import Outcome
from cachesvc_client.wire.errors import CacheSvcError, Forbidden, InvalidRequest, NotFound, Unavailable
from tests.deploy.composite import commands
from tests.deploy.github_api import READ_TOKEN, STRANGER, TOKEN, Comments, comments_api

from .conftest import command
from .test_report import HEAD, OUTCOMES

HOSTILE = "a%0Ab%\r\n::error::x,y:z <b> @org/team #12 | `c` [l](http://x) *d* ##[add-mask]e\x1b[2J"
SPEC_OF_BERT = '# a spec\nname = "team/bert"\n[[target]]\nid = "bert"\n\n[[target]]\n# vit\nid = "vit"\n'


def write(folder: Path, runner: str, outcomes: list[Outcome], **changed: object) -> Path:
    head = replace(HEAD, target_lines={"bert": 3, "llama": 14}, **changed)  # type: ignore[arg-type]
    path = folder / f"{runner}.json"
    path.write_text(json.dumps(report.document(head, outcomes)))
    return path


def of(folder: Path, outcomes: list[Outcome], **changed: object) -> MergedReport:
    return merge_reports([write(folder, "one", outcomes, **changed)])


def test_a_report_that_is_read_back_shows_the_same(tmp_path: Path) -> None:
    run = read_report(write(tmp_path, "h200", OUTCOMES))
    assert run.head is not None and (run.runner, run.exit_status) == ("h200", 9)
    assert report.markdown(run.head, run.outcomes) == report.markdown(HEAD, OUTCOMES)
    assert report.lines(run.head, run.outcomes) == report.lines(HEAD, OUTCOMES)
    assert report.document(run.head, run.outcomes) == json.loads((tmp_path / "h200.json").read_text())


@pytest.mark.parametrize(
    "change",
    [
        {"name": "team/bert -->\n"},
        {"targets": [{"target": "a b", "status": "warm"}]},
        {"targets": [{"target": "a", "status": "splendid"}]},
        {"targets": [{"target": "a", "status": "warm", "numbers": {"faster": "horse"}}]},
        {"targets": [{"target": "a", "status": "warm", "compared": []}]},
        {"targets": {}},
        {"environment": "linux"},
        {"format": "cachesvc.warm/1"},
    ],
)
def test_what_is_no_report_is_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    document = {**json.loads(write(tmp_path, "x", OUTCOMES).read_text()), **change}
    (tmp_path / "x.json").write_text(json.dumps(document))
    if change == {"targets": {}}:
        assert read_report(tmp_path / "x.json").outcomes == ()
        return
    with pytest.raises(InvalidRequest, match="no report of cachesvc"):
        read_report(tmp_path / "x.json")


def test_a_line_of_use_that_would_end_its_block_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "x", [Outcome("bert", "warm")], use="a\n```\n<b>")
    head = read_report(path).head
    assert head is not None and head.use == ""


def test_the_lines_of_the_targets_are_those_of_their_headers(tmp_path: Path) -> None:
    path = tmp_path / "warm.toml"
    path.write_text(SPEC_OF_BERT)
    assert target_lines(path) == {"bert": 3, "vit": 6}
    path.write_text("name = ")
    assert target_lines(path) == target_lines(tmp_path / "none.toml") == {}


def test_annotations_name_the_line_of_the_target(tmp_path: Path) -> None:
    folder = tmp_path / "service"
    folder.mkdir()
    outcomes = [*OUTCOMES, Outcome("bert/x", "cold")]
    listed = annotate(of(tmp_path, outcomes, spec=f"{folder}/w.toml"), tmp_path)
    assert [(one.level, one.title, one.file, one.line) for one in listed] == [
        ("error", "llama/default is failed", "service/w.toml", 14),
        ("error", "bad/default is failed", "service/w.toml", None),
        ("warning", "bert/x is cold", "service/w.toml", 3),
    ]
    assert listed[0].message == "compiled output differs <a>; tuned 2 kernels"
    [elsewhere, *_] = annotate(of(tmp_path, OUTCOMES, spec="/elsewhere/w.toml"), tmp_path)
    assert (elsewhere.file, elsewhere.line) == ("", None)


def test_no_text_becomes_a_workflow_command(tmp_path: Path) -> None:
    [line] = annotation_lines([Annotation("error", HOSTILE, HOSTILE, "a,b:c.toml", 3)])
    assert "\n" not in line and "\r" not in line
    properties = {"file": "a,b:c.toml", "line": "3", "title": HOSTILE}
    assert commands(line) == [("error", properties, HOSTILE)]
    merged = of(tmp_path, [Outcome("bert", "failed", (HOSTILE,))])
    assert commands(unobeyed(f"{HOSTILE}\n::set-output name=warm::true\n{merged.text()}")) == []
    assert unobeyed("") != unobeyed("")


def test_github_is_given_no_more_annotations_than_it_shows() -> None:
    lines = annotation_lines(Annotation("error", str(number), "x") for number in range(14))
    assert len(lines) == 10 and lines[-1].endswith("::5 more: see the summary of this job")
    assert len(annotation_lines([Annotation("error", "x", "x")] * 9)) == 9


def test_markdown_shows_a_text_as_it_is(tmp_path: Path) -> None:
    [line] = [
        line
        for line in of(tmp_path, [Outcome("bert", "failed", (HOSTILE,))]).markdown().splitlines()
        if line.startswith("- not warm")
    ]
    for active in ("<b>", "@org", "#12", "`c`", "[l](", "*d*", " | "):
        assert active not in line.replace("\\`", "").replace("\\[", "").replace("\\*", "").replace("\\|", "")


def test_a_long_report_is_cut_to_what_fits(tmp_path: Path) -> None:
    merged = of(tmp_path, [Outcome("bert", "failed", ("é" * 50_000,))])
    whole, short = merged.markdown(), merged.short_markdown()
    assert fitting(whole, short, 200_000) == whole
    assert fitting(whole, short, 60_000) == short
    cut = fitting(whole, short, 300)
    assert len(cut.encode()) <= 300 and cut.endswith("The rest is in the log of the job.\n")
    assert cut.startswith("# Warm report: team/bert:latest\n")


def test_outputs_say_what_was_published(tmp_path: Path) -> None:
    digest = "sha256:" + "0" * 64
    outputs = of(tmp_path, OUTCOMES).outputs()
    names = ("warm", "exit-status", "targets", "targets-warm", "targets-failed")
    assert [outputs[name] for name in names] == ["false", "9", "4", "2", "2"]
    assert outputs["revision"] == digest
    assert json.loads(outputs["revisions"]) == {"bert/float32/default": digest}
    write_outputs(tmp_path / "out", outputs)
    write_outputs(tmp_path / "out", {"more": "1"})
    assert len((tmp_path / "out").read_text().splitlines()) == len(outputs) + 1
    write(tmp_path, "two", OUTCOMES)
    both = merge_reports([tmp_path / "one.json", tmp_path / "two.json"]).outputs()
    assert both["revision"] == "" and json.loads(both["revisions"])["two"] == {"bert/float32/default": digest}


def test_reports_of_several_runs_are_one(tmp_path: Path) -> None:
    good = [Outcome("bert", "warm")]
    write(tmp_path, "a", good)
    write(tmp_path, "b", [*good, Outcome("vit", "fresh")])
    (tmp_path / "killed.json").write_text("")
    error = {"code": "unauthenticated", "message": "no <token>", "hint": "set @it"}
    (tmp_path / "refused.json").write_text(json.dumps({"error": error}))
    merged = merge_reports([tmp_path], ["a", "z"])
    assert merged.exit_status == 9
    assert merged.summary() == (
        "team/bert:latest: 3 of 4 are warm, in 2 environments; 2 runners without a target; "
        "1 runners without a report"
    )
    assert merged.matrix().problems() == [
        "no report of z: its job failed, or did not keep it",
        "killed: nothing was warmed: its run ended without a report: see its log",
        "refused: nothing was warmed: no <token> (set @it)",
        "vit is missing on 2.13.0+cpu, cpu avx512 (a)",
    ]
    markdown = merged.markdown()
    assert "<token>" not in markdown and "@it" not in markdown
    assert markdown.count("<details>") == markdown.count("</details>") == 4
    document = merged.document()
    assert (document["warm"], set(document["runs"])) == (False, {"a", "b", "killed", "refused"})
    assert merge_reports([tmp_path / "refused.json"]).exit_status == 3
    assert merge_reports([tmp_path / "a.json"]).exit_status == 0
    assert merge_reports([tmp_path / "a.json"], ["z"]).exit_status == 9


def test_reports_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a", OUTCOMES)
    write(tmp_path, "b", OUTCOMES, name="team/other:latest")
    with pytest.raises(InvalidRequest, match="different names"):
        merge_reports([tmp_path])
    with pytest.raises(InvalidRequest, match="two reports of a"):
        merge_reports([tmp_path / "a.json", tmp_path / "a.json"])
    (tmp_path / "none").mkdir()
    with pytest.raises(NotFound, match=r"no report \(\*\.json\)"):
        merge_reports([tmp_path / "none"])


def test_junit_has_a_case_for_each_target(tmp_path: Path) -> None:
    write(tmp_path, "a", [*OUTCOMES, Outcome("late", "cancelled"), Outcome("bert/x", "cold", (HOSTILE,))])
    root = ElementTree.fromstring(junit(merge_reports([tmp_path], ["b"])))
    one, absent = root.findall("testsuite")
    counts = [one.get(key) for key in ("tests", "failures", "errors", "skipped")]
    assert counts == ["6", "3", "0", "1"]
    assert [case.get("name") for case in one if case.find("failure") is not None] == [
        "llama/default",
        "bad/default",
        "bert/x",
    ]
    assert absent.get("name") == "b" and absent.get("errors") == "1"


def test_code_quality_has_a_finding_at_a_line(tmp_path: Path) -> None:
    merged = of(tmp_path, OUTCOMES, spec=str(tmp_path / "w.toml"))
    findings = code_quality(annotate(merged, tmp_path))
    assert [(row["severity"], row["location"]) for row in findings] == [
        ("major", {"path": "w.toml", "lines": {"begin": 14}}),
        ("major", {"path": "w.toml", "lines": {"begin": 1}}),
    ]
    assert len({row["fingerprint"] for row in findings}) == 2
    assert code_quality([Annotation("error", "x", "no file")]) == []


@pytest.fixture
def comments(monkeypatch: pytest.MonkeyPatch) -> Iterator[Comments]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    with comments_api() as running:
        yield running


def pull(comments: Comments, token: str = TOKEN) -> PullRequest:
    return PullRequest(comments.url, "org/app", 7, token)


def test_a_comment_is_updated_and_not_repeated(comments: Comments) -> None:
    for number in range(130):
        comments.add(f"comment {number}")
    assert pull(comments).write_comment("warm.toml", "first") == "https://git.example/c/131"
    assert pull(comments).write_comment("other.toml", "of another spec") == "https://git.example/c/132"
    assert pull(comments).write_comment("warm.toml", "second") == "https://git.example/c/131"
    assert len(comments.rows) == 132
    assert comments.rows[130]["body"].endswith("-->\nsecond") and comments.rows[0]["body"] == "comment 0"


def test_the_comment_of_a_stranger_is_not_taken_for_the_report(comments: Comments) -> None:
    pull(comments).write_comment("warm.toml", "first")
    comments.rows[0] |= STRANGER
    pull(comments).write_comment("warm.toml", "second")
    assert [row["body"].rpartition("\n")[2] for row in comments.rows] == ["first", "second"]


def test_the_token_is_shown_nowhere_and_refusals_are_said(comments: Comments) -> None:
    assert TOKEN not in repr(pull(comments))
    for token in (READ_TOKEN, "ghs_unknown"):
        with pytest.raises(Forbidden, match="comment on pull request 7") as raised:
            pull(comments, token).write_comment("warm.toml", "x")
        assert "pull-requests: write" in raised.value.hint and token not in str(raised.value)
    with pytest.raises(InvalidRequest, match="plain HTTP"):
        PullRequest("http://git.example:1/api", "org/app", 7, TOKEN).write_comment("warm.toml", "x")


def test_an_api_that_fails_is_asked_again_but_sent_no_comment_twice(
    comments: Comments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    comments.failures = [502]
    pull(comments).write_comment("warm.toml", "x")
    assert comments.requests == ["GET /api/v3/repos/org/app/issues/7/comments"] * 2 + [
        "POST /api/v3/repos/org/app/issues/7/comments"
    ]
    comments.rows.clear()
    comments.requests.clear()
    comments.failures = [500, 500, 500]
    with pytest.raises(Unavailable, match="status 500"):
        pull(comments).write_comment("warm.toml", "x")
    assert len(comments.requests) == 3


@pytest.mark.parametrize(
    ("event", "number"),
    [
        ('{"pull_request": {"number": 7}}', 7),
        ('{"ref": "refs/heads/main"}', None),
        ('{"pull_request": {"number": "7/../8"}}', None),
        ("[]", None),
    ],
)
def test_the_pull_request_is_that_of_the_event(tmp_path: Path, event: str, number: int | None) -> None:
    (tmp_path / "event.json").write_text(event)
    environ = {"GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_REPOSITORY": "org/app"}
    found = PullRequest.of_job(environ, TOKEN)
    assert (found.number if found else None) == number
    if number:
        with pytest.raises(InvalidRequest, match="no token"):
            PullRequest.of_job(environ, "")
    for wrong in ({"GITHUB_REPOSITORY": "org/app/../.."}, {"GITHUB_EVENT_PATH": str(tmp_path / "none")}):
        with pytest.raises(CacheSvcError):
            PullRequest.of_job({**environ, **wrong}, TOKEN)


def test_the_command_writes_each_form(tmp_path: Path, plain_environment: dict[str, str]) -> None:
    (tmp_path / "reports").mkdir()
    write(tmp_path / "reports", "a", OUTCOMES, spec="w.toml")
    options = ("--junit", "j.xml", "--code-quality", "q.json", "--report", "r.md")
    words = command("warm-report", "reports", *options)

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words, *more], cwd=tmp_path, env=plain_environment, capture_output=True, text=True
        )

    done = run()
    assert done.returncode == 9 and "2 of 4 targets are warm" in done.stdout and done.stderr == ""
    assert ElementTree.parse(tmp_path / "j.xml").getroot().tag == "testsuites"
    assert json.loads((tmp_path / "q.json").read_text())[0]["location"]["lines"] == {"begin": 14}
    assert (tmp_path / "r.md").read_text() == report.markdown(replace(HEAD, spec="w.toml"), OUTCOMES)
    document = json.loads(run("--json").stdout)
    assert document["exit_status"] == 9 and document["targets"][0]["line"] == 3
    for wrong, says in (
        (("--json", "--github"), "drop all but one"),
        (("--junit", "none/j.xml"), "--junit none/j.xml: No such file"),
        (("--comment", "x"), "2 of 4"),
    ):
        done = run(*wrong)
        assert says in done.stdout + done.stderr and done.stderr.count("\n") <= 1
    assert done.returncode == 9 and "warning: no comment: no job of GitHub Actions" in done.stderr

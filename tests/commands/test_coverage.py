"""Test ``coverage`` against a real registry: one name, entries of several environments and targets."""

from __future__ import annotations

import json
import time
from pathlib import Path

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Namespace, ShortName
from cachesvc_client.wire.requests.reports import ColdName, ColdStart, KindWork, ReportRequest, RevisionReport

NEW_TORCH = {"torch": "2.15.0+cpu"}


def states(command, name: str, *words: object) -> tuple[int, dict[tuple[str, str], str]]:
    """Return the exit status, and the state of each cell by torch and target."""
    status, out, err = command("coverage", name, "--json", *words)
    assert err == "", err
    cells = {
        (row["facts"]["torch"], cell["target"]): cell["state"]
        for row in json.loads(out)["environments"]
        for cell in row["cells"]
    }
    return status, cells


def test_a_rollout_is_cold_until_its_entry_is_there(command, bundle, tmp_path: Path) -> None:
    for target in ("bert/default", "bert/autocast"):
        assert command("push", bundle("team/rollout", target))[0] == 0
    assert states(command, "team/rollout") == (
        0,
        {("2.13.0+cpu", "bert/default"): "warm", ("2.13.0+cpu", "bert/autocast"): "warm"},
    )
    here = json.loads(command("doctor", "--json")[1])["fingerprint"]
    (tmp_path / "new.json").write_text(json.dumps({"fingerprint": {**here, **NEW_TORCH}}))
    status, cells = states(command, "team/rollout", "--environment", tmp_path / "new.json")
    assert status == 9 and len(cells) == 4
    assert {state for (torch, _), state in cells.items() if torch.startswith("2.15")} == {"cold"}
    status, out, _ = command("coverage", "team/rollout", "--environment", tmp_path / "new.json")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "team/rollout:latest: 2 of 4 are warm" and status == 9
    assert lines[1] == "torch device python bert/autocast bert/default"
    assert [line.split()[0] for line in lines[2:4]] == ["2.13.0+cpu", "2.15.0+cpu"], "the oldest torch first"
    assert any(
        line.startswith("bert/default is cold on 2.15.0+cpu")
        and "torch: 2.15.0+cpu here, 2.13.0+cpu in the entry" in line
        for line in lines
    ), out
    for target in ("bert/default", "bert/autocast"):
        assert command("push", bundle("team/rollout", target, content=b"of 2.15", **NEW_TORCH))[0] == 0
    assert states(command, "team/rollout") == (
        0,
        {(torch, target): "warm" for torch in ("2.13.0+cpu", "2.15.0+cpu") for target in
         ("bert/default", "bert/autocast")},
    )  # fmt: skip


def test_an_environment_with_an_older_model_is_stale(command, bundle) -> None:
    command("push", bundle("team/models", model=b"first", content=b"1"))
    command("push", bundle("team/models", model=b"second", content=b"2", **NEW_TORCH))
    status, cells = states(command, "team/models")
    assert (status, cells) == (
        9,
        {("2.13.0+cpu", "bert/default"): "stale", ("2.15.0+cpu", "bert/default"): "warm"},
    )


def test_a_new_model_is_warm_as_soon_as_its_entry_is_there(command, bundle, admin, tmp_path: Path) -> None:
    """The entries of the models before it are there too, and decide nothing."""
    for number in range(3):
        graph = f"fxgraph/xx/{str(number).ljust(51, 'x')}/{'a' * 52}"
        content = b"%d" % number
        one = bundle("team/changed", model=content, content=content, file=graph, deferrable=True)
        command("push", one)
        time.sleep(1)  # what is published in one second is of one age
    assert states(command, "team/changed") == (0, {("2.13.0+cpu", "bert/default"): "warm"})
    # And `explain` says the same: a start installs that one, and no other.
    facts = json.loads(admin("entries", "list", "team/changed", "--json"))["rows"][0]["fingerprint"]
    (tmp_path / "here.json").write_text(json.dumps(facts))
    explained = json.loads(command("explain", "team/changed", "--here", tmp_path / "here.json", "--json")[1])
    assert [row["verdict"] for row in explained["entries"]] == ["fits", "older", "older"]


def test_what_the_registry_withholds_is_failed(command, bundle, admin) -> None:
    command("push", bundle("team/withheld", content=b"withheld"))
    [entry] = json.loads(admin("entries", "list", "team/withheld", "--json"))["rows"]
    admin("quarantine", "set", entry["revision"], "--why", "wrong numbers", "--apply")
    assert states(command, "team/withheld") == (9, {("2.13.0+cpu", "bert/default"): "failed"})
    assert "wrong numbers" in command("coverage", "team/withheld")[1]


def test_an_entry_that_the_last_start_did_not_use_is_failed(command, bundle, registry, admin) -> None:
    command("push", bundle("team/inert"))
    [entry] = json.loads(admin("entries", "list", "team/inert", "--json"))["rows"]
    revision = RevisionReport(Digest(entry["revision"]), "inert", files=1)
    with Remote(registry.url, registry.token) as remote:
        remote.report(ReportRequest("0" * 32, entry["fingerprint"], (revision,), why=("grad mode",)))
    assert states(command, "team/inert") == (9, {("2.13.0+cpu", "bert/default"): "failed"})
    assert "services compiled all the same: grad mode" in command("coverage", "team/inert")[1]


def test_an_environment_that_was_seen_cold_is_a_row(command, bundle, registry, admin) -> None:
    """Until it has its entry; what fits it was never built, and a start there compiled."""
    command("push", bundle("team/seen"))
    [entry] = json.loads(admin("entries", "list", "team/seen", "--json"))["rows"]
    there = {**entry["fingerprint"], "torch": "2.14.0+cpu"}
    wanted = ColdStart((ColdName(Namespace("team"), ShortName("seen")),))
    with Remote(registry.url, registry.token) as remote:
        remote.report(ReportRequest("0" * 32, there, (), {"inductor": KindWork(3, 0, 9.5)}, cold=wanted))
    assert states(command, "team/seen") == (
        9,
        {("2.13.0+cpu", "bert/default"): "warm", ("2.14.0+cpu", "bert/default"): "cold"},
    )
    assert "1 of 2 are warm" in command("coverage", "team/seen")[1]
    command("push", bundle("team/seen", content=b"of 2.14", torch="2.14.0+cpu"))
    status, cells = states(command, "team/seen")
    assert (status, set(cells.values())) == (0, {"warm"})


def test_what_services_refuse_is_cold(command, bundle) -> None:
    """A service that trusts the same keys as this machine installs nothing, so its next start compiles."""
    command("push", bundle("team/refused"))
    assert states(command, "team/refused") == (0, {("2.13.0+cpu", "bert/default"): "warm"})
    other = {"CACHESVC_TRUSTED_KEYS": str(SigningKey.generate().public)}
    for gate in ((), ("--gate", "--torch", "2.13.0+cpu")):
        status, out, err = command("coverage", "team/refused", *gate, **other)
        line = next(line for line in out.splitlines() if "bert/default is " in line)
        assert status == 9 and "is cold on 2.13.0+cpu" in line and "trust: " in line, (out, err)
        assert "signed by" in line, line


def test_wrong_uses_are_one_line(command, tmp_path: Path) -> None:
    cases = [
        (("team/nothing",), {}, 4, "nothing is published as team/nothing:latest"),
        (("team/nothing",), {"CACHESVC_TOKEN": "csv_wrong"}, 3, "token"),
        (("team/nothing",), {"CACHESVC_URL": "http://127.0.0.1:9"}, 6, "127.0.0.1:9"),
        (("team/nothing", "--environment", tmp_path / "none.json"), {}, 2, "none.json"),
    ]
    for words, variables, status, expected in cases:
        result = command("coverage", *words, **variables)
        assert result[0] == status and result[1] == "", result
        assert expected in result[2] and result[2].count("\n") == 1 and "Traceback" not in result[2], result


def test_a_withheld_head_says_who_withholds_it(command, bundle, admin) -> None:
    command("push", bundle("team/withheld-here", content=b"withheld here"))
    (row,) = json.loads(admin("revisions", "list", "team/withheld-here", "--json"))["rows"]
    admin("quarantine", "set", row["revision"], "--why", "wrong numbers", "--apply")
    status, out, err = command("coverage", "team/withheld-here")
    assert status == 9, err
    line = next(line for line in out.splitlines() if "bert/default is " in line)
    assert "quarantine: withheld by an operator (wrong numbers); sha256:" in line, out
    assert line.endswith("not offered until it is released or replaced"), line


def test_the_model_that_starts_decides_where_it_is_known(command, bundle, registry, admin) -> None:
    """A model that nobody warmed is unknown and not warm; one that was rolled back to is warm, as its start
    finds its entry by its keys."""
    for number in range(2):
        graph = f"fxgraph/xx/{str(number).ljust(51, 'x')}/{'a' * 52}"
        content = b"%d" % number
        command("push", bundle("team/asked", model=content, content=content, file=graph, deferrable=True))
    there = ("2.13.0+cpu", "bert/default")
    for content in (b"0", b"1"):
        for gate in ((), ("--gate",)):
            answer = states(command, "team/asked", "--model", Digest.of(content), *gate)
            assert answer == (0, {there: "warm"})
    new = Digest.of(b"2")
    assert states(command, "team/asked", "--model", new) == (9, {there: "unknown"})
    assert states(command, "team/asked", "--gate", "--model", new, "--allow", "unknown")[0] == 0
    text = " ".join(command("coverage", "team/asked", "--model", new)[1].split())
    newest = f"the newest is of model {Digest.of(b'1')[:19]}"
    assert f"no entry here is of model {new[:19]}, {newest}; warm --check tries a start" in text
    # What its own entry did decides, and not what another model's did.
    rows = json.loads(admin("entries", "list", "team/asked", "--json"))["rows"]
    of_first = next(row for row in rows if row["model"] == Digest.of(b"0"))
    revision = RevisionReport(Digest(of_first["revision"]), "inert", files=1)
    with Remote(registry.url, registry.token) as remote:
        remote.report(ReportRequest("0" * 32, of_first["fingerprint"], (revision,), why=("grad mode",)))
    assert states(command, "team/asked", "--model", Digest.of(b"0")) == (9, {there: "failed"})
    assert states(command, "team/asked", "--model", Digest.of(b"1")) == (0, {there: "warm"})
    status, _, err = command("coverage", "team/asked", "--model", "4bf5")
    assert status == 2 and "digest (sha256:<64 hex digits>)" in err and err.count("\n") == 1


def test_hits_that_will_trace_are_said_before_they_happen(command, bundle, admin, tmp_path: Path) -> None:
    """Of entries with compiled graphs and without what Dynamo traced, if their signer is trusted."""
    graph = f"fxgraph/xx/{'t'.ljust(51, 'x')}/{'a' * 52}"
    command("push", bundle("team/traced", file=graph, deferrable=True))
    command("push", bundle("team/traced", "library/default", content=b"no graph"))
    facts = json.loads(admin("entries", "list", "team/traced", "--json"))["rows"][0]["fingerprint"]
    (tmp_path / "here.json").write_text(json.dumps(facts))
    status, out, err = command("coverage", "team/traced")
    assert (status, err) == (0, "")
    assert "hits will trace, as nothing was recorded: bert/default" in out
    out = command("explain", "team/traced", "--here", tmp_path / "here.json")[1]
    assert "a start will be a hit, but traced (nothing was recorded): bert/default\n" in out

"""`explain` shows what starts came to, and says of what is withheld here that it does not fit."""

from __future__ import annotations

from cachesvc_client.commands.explain import judge, render
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import environment
from cachesvc_client.wire.names import Tag, Target
from cachesvc_client.wire.protocol import EntrySummary, EnvironmentUse

HERE = {"torch": "2.13", "python_abi": "cp311", "platform": "linux-x86_64", "libc": "2.36", "gpu": "H200"}
SCOPES = ("gpu",)


def row(*uses: EnvironmentUse) -> EntrySummary:
    revision = Digest.of(b"revision")
    return EntrySummary(
        Digest.of(b"entry"),
        Target("bert"),
        Tag("latest"),
        revision,
        1,
        10,
        1,
        1,
        HERE,
        SCOPES,
        usefulness=uses,
    )


def use(fingerprint: dict, **more) -> EnvironmentUse:
    facts = {"gpu": str(fingerprint["gpu"]), "torch": "2.13"}
    return EnvironmentUse(environment(fingerprint, HERE, SCOPES), facts, **more)


def test_counts_are_shown_by_environment_and_decide_nothing() -> None:
    there = use({**HERE, "gpu": "A100"}, inert=2, inert_hosts=2, spent=3.0, why="grad mode")
    found = judge("team/x", HERE, [row(use(HERE, hit=12, partial=1, saved=140.25), there)])
    assert found.fitting == 1
    lines = [" ".join(line.split()) for line in render(found).splitlines()]
    assert "bert here 12 hit, 1 partial; 140.2 s saved, 0.0 s spent compiling" in lines
    told = "bert A100, 2.13 2 inert; 0.0 s saved, 3.0 s spent compiling; inert on 2 hosts since the last hit"
    assert f"{told} (grad mode)" in lines


def test_withheld_here_does_not_fit_here_and_says_how_to_mend_it() -> None:
    withheld = {"inert": 3, "inert_hosts": 3, "quarantined": 100, "why": "thread count"}
    found = judge("team/x", HERE, [row(use(HERE, **withheld))])
    assert found.fitting == 0
    text = render(found)
    assert "usefulness: here inert on the hosts of this environment (thread count)" in text
    assert "usefulness: build it as the service runs it" in text
    assert "not offered there" in text
    elsewhere = judge("team/x", HERE, [row(use({**HERE, "gpu": "A100"}, **withheld))])
    assert elsewhere.fitting == 1, "what is withheld elsewhere fits here"


def test_without_any_report_nothing_is_said_of_it() -> None:
    assert "what starts came to" not in render(judge("team/x", HERE, [row()]))

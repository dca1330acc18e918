"""Test the usefulness of a start as a pure function of the installed files, the used files and the counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.hooks.counters import Observation, TorchWork
from cachesvc_client.node.installed import InstalledRevision
from cachesvc_client.outcome.judge import Report, RevisionUse, judge, judge_revisions, uses, with_reason
from cachesvc_client.process.lost_files import lost_files
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import FileRecord, Frame, Manifest, PackRecord, Statement, Workload
from cachesvc_client.wire.names import Name, Target

SOME = Digest.of(b"some")
SIGNER = SigningKey.generate().public
FX, AOT, HOST = "f" + "a" * 50, "a" + "b" * 50, "0123456789abcdef"
KERNEL = f"cachesvc/{HOST}/{'c' * 64}.so"


def installed(
    name: str, *paths: str, kind: str = "inductor", first_call: float = 0.0, model: Digest | None = None
) -> InstalledRevision:
    parsed = Name.parse(name)
    manifest = Manifest(
        Statement(parsed.namespace, parsed.name, Target("bert/default"), 1, tag=parsed.tag),
        PackRecord(SOME, 10),
        (Frame(0, 10, 10, SOME),),
        tuple(FileRecord(kind, path, 1, SOME, 0, 0) for path in paths),
        {},
        Workload(script=SOME, model=model),
        measured={"first_call": first_call} if first_call else {},
    )
    return InstalledRevision(manifest, Digest.of(name.encode()), SIGNER, len(paths), 100)


def use(used: int) -> RevisionUse:
    return RevisionUse("team/x:latest", "bert/default", str(SOME), 3, 100, used)


COMPILED = Observation(compilations=1)
TUNED = Observation(tuning_runs=1)
STARTED = Observation(compiler_processes=1)
NOTHING = Observation()


@pytest.mark.parametrize(
    ("observed", "revisions", "state"),
    [
        (NOTHING, [use(1)], "hit"),
        (NOTHING, [use(0), use(2)], "hit"),
        (COMPILED, [use(1)], "partial"),
        (TUNED, [use(1)], "partial"),
        (STARTED, [use(1)], "partial"),
        (COMPILED, [use(0), use(0)], "inert"),
        (TUNED, [use(0)], "inert"),
        (STARTED, [use(0)], "inert"),
        (COMPILED, [], "miss"),
        (TUNED, [], "miss"),
        (STARTED, [], "miss"),
        (NOTHING, [], "unused"),
        (NOTHING, [use(0)], "unused"),
    ],
)
def test_a_start_has_one_of_five_states(observed, revisions, state):
    assert judge(observed, revisions) == state


def test_a_restore_that_failed_is_a_miss_also_if_nothing_had_to_be_compiled():
    """A warm folder or the node's own results hide a wrong name until a fresh machine starts."""
    assert judge(NOTHING, [], failed=True) == "miss"
    assert judge(NOTHING, [use(0)], failed=True) == "unused", "another name was restored"
    assert judge(NOTHING, [use(1)], failed=True) == "hit"
    assert judge(COMPILED, [use(0)], failed=True) == "inert"


def test_pytorchs_own_hits_are_no_hits_of_cachesvc():
    """A user's warm folder hits too: no restored file was used, and nothing was compiled."""
    assert judge(Observation(torch=TorchWork(fx_hits=3, aot_hits=3)), [use(0)]) == "unused"


def test_use_is_counted_by_kernel_path_and_by_key():
    one = installed("team/one", f"fxgraph/aa/{FX}/{'1' * 50}", f"aotautograd/{AOT}/{'2' * 50}", KERNEL)
    two = installed("team/two:v1", f"fxgraph/bb/{FX[:-1]}b/{'3' * 50}")

    def used(paths: set[str], keys: set[str]) -> list[int]:
        return [revision.used for revision in uses([one, two], paths, keys)]

    assert used(set(), set()) == [0, 0]
    assert used({KERNEL}, set()) == [1, 0]
    assert used({KERNEL}, {FX, AOT}) == [3, 0]
    assert used(set(), {FX[:-1] + "b"}) == [0, 1]
    assert used({"cachesvc/other.so"}, {"another key", "1" * 50}) == [0, 0], "names of contents are no keys"


def test_a_file_of_several_revisions_counts_for_the_revision_that_explains_most():
    """A name has nine revisions with the same kernel; a process that used one of them reports one."""
    graphs = ["f" + letter * 50 for letter in "abcdefghi"]
    revisions_installed = [
        installed(f"team/{letter}", f"fxgraph/aa/{graph}/{'1' * 50}", KERNEL, first_call=10.0)
        for letter, graph in zip("abcdefghi", graphs, strict=True)
    ]
    revision_uses = uses(revisions_installed, {KERNEL}, {graphs[4]})
    assert [use.used for use in revision_uses] == [0, 0, 0, 0, 2, 0, 0, 0, 0]
    assert Report("hit", (), NOTHING, revision_uses).used == "2 artifacts of 1 revision used"


def test_of_two_revisions_with_the_same_artifacts_the_models_own_counts():
    mine = Digest.of(b"mine")
    installed_revisions = [installed("team/a", KERNEL), installed("team/b", KERNEL, model=mine)]
    assert [use.used for use in uses(installed_revisions, {KERNEL}, set())] == [1, 0]
    assert [use.used for use in uses(installed_revisions, {KERNEL}, set(), [mine])] == [0, 1]


def test_a_revision_is_named_as_it_was_signed():
    [only] = uses([installed("team/two:v1", KERNEL)], set(), set())
    assert (only.name, only.target, only.files, only.bytes) == ("team/two:v1", "bert/default", 1, 100)
    assert only.revision == str(Digest.of(b"team/two:v1"))


def test_the_line_in_the_log_has_state_and_counts():
    observation = Observation(compilations=2, tuning_runs=1)
    report = Report("partial", ("why", "and why"), observation, (use(3), use(1)))
    assert report.line == "partial: 2 compilations, 1 tuning runs, 4 artifacts of 2 revisions used; why"
    unused = Report("unused", (), NOTHING)
    assert unused.line == "unused: 0 compilations, 0 tuning runs, 0 artifacts of 0 revisions used"


def test_an_unneeded_revision_is_not_inert():
    """A name has many targets; a start counts against a target only if it used none of them."""
    mine, other = Digest.of(b"mine"), Digest.of(b"other")
    installed_revisions = [
        installed("team/one", KERNEL, first_call=10.0),
        installed("team/two", KERNEL, first_call=30.0),
        installed("team/three", KERNEL, model=other),
    ]

    def states(state, used, saved=None, models=()):
        rows = judge_revisions(state, installed_revisions, [use(count) for count in used], saved, models)
        return [(row.state, row.saved) for row in rows]

    assert states("partial", [1, 0, 0], 8.0) == [("partial", 8.0), ("unused", None), ("unused", None)]
    assert states("hit", [1, 3, 0], 38.0) == [("hit", 9.5), ("hit", 28.5), ("unused", None)]
    assert states("inert", [0, 0, 0]) == [("inert", None)] * 3
    assert states("inert", [0, 0, 0], models=[mine]) == [("inert", None)] * 2 + [("unused", None)]
    assert states("inert", [0, 0, 0], models=[other]) == [("inert", None)] * 3
    assert states("unused", [0, 0, 0]) == [("unused", None)] * 3


def test_what_was_compiled_beside_installed_files_has_a_reason() -> None:
    for state in ("inert", "partial"):
        assert with_reason(state, ()) and with_reason(state, iter(["why"])) == ("why",)
    assert with_reason("hit", ()) == with_reason("unused", ()) == ()


def test_a_restored_kernel_that_this_process_compiled_over_is_not_called_damaged(tmp_path: Path) -> None:
    """Seen with vLLM on an H200: a graph missed, and Triton compiled its kernels over restored ones, which
    had no group file; the report named that effect and hid the key."""
    kernel = "2UJO52DSEZRGHT6ZTFM3OFRXRUQXQTTN4NE7IX23MOP23UKCO6CQ/triton_red_fused_2.cubin"
    (tmp_path / kernel).parent.mkdir()
    (tmp_path / kernel).write_bytes(b"more bytes than the record says")
    entry, roots = installed("team/llm", kernel, kind="triton"), [{"triton": tmp_path}]
    [reason] = lost_files([entry], roots)
    assert "changed after the install and are damaged" in reason
    assert list(lost_files([entry], roots, made=lambda: {("triton", kernel)})) == []


def test_a_damaged_host_kernel_that_this_process_built_again_is_called_damaged(tmp_path: Path) -> None:
    (tmp_path / KERNEL).parent.mkdir(parents=True)
    (tmp_path / KERNEL).write_bytes(b"cut, and built again")
    reasons = lost_files(
        [installed("team/llm", KERNEL)], [{"inductor": tmp_path}], made=lambda: {("inductor", KERNEL)}
    )
    assert "changed after the install and are damaged" in next(reasons)

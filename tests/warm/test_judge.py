"""Test the judge: forbidden work of a replay, the numbers, and the tolerance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachesvc.warm.verdict import judge
from cachesvc.warm.worker.other_keys import other_keys
from cachesvc.warm.worker.phase import PhaseResult, Times
from cachesvc.warm.worker.steady import Steady
from cachesvc_client.canary.tolerance import Compared
from cachesvc_client.hooks.counters import Observation, TorchWork
from cachesvc_client.wire.manifest.key_components import KeyFacts

QUIET = PhaseResult("replay", observation=Observation(torch=TorchWork(fx_hits=3, aot_hits=3)))
EXACT = PhaseResult("compile", comparisons={"a": Compared(0.0, 1.0, 0.1)})


def test_a_replay_that_does_nothing_is_settled():
    assert judge.remaining_work(QUIET) == ()
    assert judge.verdict(EXACT, QUIET).warm


WORK = {
    "compiled 1 graph that no entry held": {"torch": TorchWork(graphs_compiled=1), "compilations": 1},
    "built 2 C++ kernels": {"torch": TorchWork(cpp_builds=2), "compilations": 2},
    "compiled 3 Triton kernels": {
        "torch": TorchWork(triton_compilations=2, worker_jobs=1),
        "compilations": 3,
    },
    "built 1 extension": {"counts": {"torch_extensions": {"builds": 1}}, "compilations": 1},
    "compiled 2 TileLang kernels": {"counts": {"tilelang": {"compilations": 2}}, "compilations": 2},
    "built 1 FlashInfer module": {"counts": {"flashinfer": {"builds": 1}}, "compilations": 1},
    "4 compilations": {"compilations": 4},
    "tuned 5 kernels": {"tuning_runs": 5},
    "searched for 2 Helion configurations": {
        "counts": {"helion": {"searches": 2}},
        "tuning_runs": 2,
        "tuned_by_kinds": 2,
    },
    "tuned 1 kernel": {"counts": {"unknown": {"runs": 1}}, "tuning_runs": 1, "tuned_by_kinds": 1},
    "started 1 compiler process: g++": {"compiler_processes": 1, "processes": ("/usr/bin/g++",)},
    "started 2 compiler processes": {"compiler_processes": 2},
}


@pytest.mark.parametrize("reason", WORK)
def test_repeated_work_is_reported_in_words(reason):
    replay = PhaseResult("replay", observation=Observation(**WORK[reason]))
    assert judge.remaining_work(replay) == (reason,)
    assert judge.verdict(EXACT, replay).reasons == (reason,)


def test_added_files_errors_and_missing_observations_are_not_settled():
    added = tuple(f"inductor/{name}" for name in "abcde")
    assert judge.remaining_work(replace(QUIET, files_added=added)) == (
        "added 5 files: inductor/a, inductor/b, inductor/c, and 2 more",
    )
    assert judge.remaining_work(replace(QUIET, error="it died")) == ("the replay failed: it died",)
    assert judge.remaining_work(PhaseResult("replay"))
    assert not judge.verdict(EXACT, replace(QUIET, error="it died")).warm


def test_a_key_that_is_another_one_in_each_process_is_told_with_what_differs():
    def keys(digits: str, key: str) -> KeyFacts:
        text = f"ns::twice code reads what has no description ({digits})"
        return KeyFacts({key: {"python_operators[0]": text}})

    saved = keys("ab", "afirst")
    [reason] = other_keys(saved, keys("cd", "asecond"))
    assert reason.startswith(
        "PyTorch's key differs from the builder's: code of an operator: 0: here ns::twice"
    )
    assert other_keys(saved, saved) == other_keys(saved, None) == ()


def test_work_that_no_cache_saves_is_reported_with_its_meaning():
    why = "Can't cache HigherOrderOperator: graphsafe_run_with_rng_state"
    assert judge.uncacheable_graphs(
        replace(EXACT, observation=Observation(torch=TorchWork(bypassed=(why, "Reduce unsupported"))))
    ) == (
        f"PyTorch does not cache a graph of this model: {why}: gradient checkpointing on a GPU with its "
        "random state kept, which torch 2.13 caches (pytorch#185562)",
        "PyTorch does not cache a graph of this model: Reduce unsupported",
    )
    assert (
        judge.uncacheable_graphs(replace(EXACT, observation=Observation()))
        == judge.uncacheable_graphs(EXACT)
        == ()
    )


def test_different_numbers_fail_whichever_output_they_differ_from():
    off = {"a": Compared(0.5, 1.0, 0.1)}
    compiled = judge.verdict(replace(EXACT, comparisons=off), QUIET)
    restored = judge.verdict(EXACT, replace(QUIET, comparisons=off))
    assert "compiled output against eager, inputs 'a': differs by 0.5 where 0.1" in compiled.reasons[0]
    assert "restored output against the builder's" in restored.reasons[0]
    assert judge.output_differences(EXACT) == ()


def steady(first: float, compiled: float, eager: float, spread: float = 0.0) -> Times:
    low, high = 1 - spread, 1 + spread
    sides = (Steady(value, value * low, value * high) for value in (compiled, eager))
    return Times(first, *sides)


def test_numbers_are_sums_over_input_sets():
    numbers = judge.numbers(
        {"a": Times(1.0), "b": Times(0.5)},
        {"a": steady(10.0, 0.1, 0.2), "b": steady(2.0, 0.1, 0.2)},
        {"a": Times(1.5), "b": Times(0.5)},
    )
    assert numbers.first_call == 12.0
    assert numbers.compile == pytest.approx(11.8)
    assert (numbers.speed_up, numbers.faster) == (pytest.approx(2.0), "compiled")
    assert numbers.eager_spread == Steady(0.4, 0.4, 0.4)
    # 12.0 + 0.2 (n - 1) <= 1.5 + 0.4 (n - 1) from n = 53.5 on.
    assert numbers.break_even == 54
    assert numbers.restored_break_even == 4


def test_a_check_takes_its_steady_times_from_the_replay():
    numbers = judge.numbers({"a": Times(1.0)}, {}, {"a": steady(1.5, 0.1, 0.2)})
    assert (numbers.first_call, numbers.break_even, numbers.restored_break_even) == (None, None, 6)


def test_break_even_may_be_at_once_or_never():
    eager, replay = {"a": Times(2.0)}, {"a": Times(1.0)}
    assert judge.numbers(eager, {"a": steady(1.0, 0.1, 0.2)}, replay).break_even == 1
    never = judge.numbers(eager, {"a": steady(1.0, 0.2, 0.1)}, replay)
    assert (never.break_even, never.restored_break_even, never.faster) == (None, None, "eager")


def test_no_break_even_is_said_where_the_difference_is_within_the_spread():
    numbers = judge.numbers({"a": Times(0.1)}, {"a": steady(9.0, 1.0, 1.2, spread=0.1)}, {"a": Times(1.0)})
    assert (numbers.break_even, numbers.restored_break_even, numbers.faster) == (None, None, "unclear")
    clear = judge.numbers({"a": Times(0.1)}, {"a": steady(9.0, 1.0, 1.2, spread=0.05)}, {"a": Times(1.0)})
    assert clear.break_even is not None


def test_a_script_has_no_eager_run():
    numbers = judge.numbers({}, {"script": Times(5.0)}, {"script": Times(1.0)})
    assert (numbers.first_call, numbers.restored_first) == (5.0, 1.0)
    assert (numbers.steady, numbers.speed_up, numbers.break_even, numbers.eager_first) == (None,) * 4
    assert numbers.faster == ""


def test_tuning_needs_a_finalise_phase():
    assert judge.needs_finalise(PhaseResult("compile", observation=Observation(tuning_runs=1)))
    helions = Observation(tuning_runs=1, tuned_by_kinds=1)
    assert not judge.needs_finalise(PhaseResult("compile", observation=helions))
    assert not judge.needs_finalise(QUIET)
    assert not judge.needs_finalise(PhaseResult("compile"))

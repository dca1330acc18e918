"""Test the canary of a sample beside a closure that stands for restored code.

The tests show that the caller gets the function's own answer at once, that the function object runs its own
code afterwards, what is compared, and what is left alone with which reason."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from cachesvc_client.canary import comparisons, side_run
from cachesvc_client.canary.beside import SideTrial
from cachesvc_client.canary.comparisons import Comparisons
from cachesvc_client.kinds.frames.eager import EagerGraph
from cachesvc_client.kinds.frames.replay.replayer import _watched
from cachesvc_client.kinds.kind import Comparison


class Recorder:
    """Records what a side trial reports, and compares when it is told to."""

    def __init__(self, suspects=("revision",)):
        self.suspects = suspects
        self.comparisons = Comparisons()
        self.wrong: list[str] = []
        self.skipped: list[str] = []
        self.called = 0

    def watch(self, graph, function, trace=True):
        graph = symbolic_trace(graph) if trace else graph
        trial = SideTrial(
            graph,
            suspects=lambda: self.suspects,
            wrong=lambda _suspects, why: self.wrong.append(why),
            skipped=self.skipped.append,
            called=self._call,
            comparisons=self.comparisons,
        )
        return trial.watch(closure(function))

    def _call(self):
        self.called += 1

    def verdict(self):
        """Return what was found wrong, and why something was not compared."""
        self.comparisons.finish(10)
        return len(self.wrong), self.skipped

    @property
    def kept(self):
        return comparisons.MOST_KEPT - self.comparisons.room._left


def closure(function):
    """Return a function object of its own that calls ``function``, as PyTorch makes one for each graph."""

    def compiled(*args):
        return function(*args)

    return compiled


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.no_grad():
        yield


def double(x):
    return (x * 2,)


def triple(x):
    return (x * 3,)


def test_a_right_function_is_the_same_object_and_runs_its_own_code_after_the_first_call():
    recorder, function = Recorder(), closure(double)
    own = function.__code__
    trial_input = torch.ones(3)
    watched = SideTrial(
        symbolic_trace(double),
        suspects=lambda: ("revision",),
        wrong=recorder.wrong.append,
        skipped=recorder.skipped.append,
        called=lambda: None,
        comparisons=recorder.comparisons,
    ).watch(function)
    assert watched is function and function.__code__ is not own
    assert watched(trial_input)[0].tolist() == [2, 2, 2]
    assert function.__code__ is own and function.__kwdefaults__ is None, "no instruction is left of it"
    assert recorder.verdict() == (0, []) and recorder.kept == 0


def test_a_wrong_function_answers_first_and_runs_eagerly_after_the_verdict():
    recorder = Recorder()
    watched = recorder.watch(double, triple)
    assert watched(torch.ones(3))[0].tolist() == [3, 3, 3], "the answer is given at once"
    assert recorder.wrong == []
    assert recorder.verdict() == (1, []) and recorder.called == 1
    assert "differs from eager by 1 where 0.00201 is allowed" in recorder.wrong[0]
    assert watched(torch.ones(3))[0].tolist() == [2, 2, 2]


def test_the_thread_begins_by_itself_and_ends(monkeypatch):
    monkeypatch.setattr(comparisons, "SETTLE_SECONDS", 0.01)
    recorder = Recorder()
    recorder.watch(double, triple)(torch.ones(3))
    deadline = time.monotonic() + 10
    while recorder.comparisons._thread is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(recorder.wrong) == 1 and recorder.comparisons._thread is None


def test_only_restored_graphs_are_compared():
    recorder = Recorder(suspects=())
    assert recorder.watch(double, triple)(torch.ones(1))[0].item() == 3
    assert recorder.verdict() == (0, []) and recorder.kept == 0


@pytest.mark.parametrize("change", ["input", "output"])
def test_a_caller_may_write_into_inputs_and_outputs_at_once(change):
    recorder, x = Recorder(), torch.ones(3)
    output = recorder.watch(double, double)(x)[0]
    (x if change == "input" else output).fill_(7)
    assert recorder.verdict() == (0, [])


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_writes_into_inputs_are_compared_and_happen_once(wrong, mode):
    def graph(x, y):
        x.add_(1)
        return (x + y,)

    def function(x, y):
        output = graph(x, y)
        if wrong:
            x.add_(100)
        return output

    recorder = Recorder()
    with mode():
        x, y = torch.zeros(2), torch.ones(2)
        recorder.watch(graph, function)(x, y)
        x.mul_(3)
        assert recorder.verdict() == (int(wrong), [])
        assert x.tolist() == [303 if wrong else 3] * 2


def test_writes_that_nobody_counts_are_not_judged():
    def function(x):
        x.data.add_(1)
        return (x * 2,)

    def graph(x):
        x.add_(1)
        return (x * 2,)

    recorder = Recorder()
    recorder.watch(graph, function)(torch.ones(2))
    assert recorder.verdict() == (0, ["it writes into an input, and the function was not seen to do so"])


def test_writes_into_memory_that_inputs_share_are_not_judged():
    base = torch.zeros(4)

    def graph(left, right):
        left.add_(1)
        return (left + right,)

    recorder = Recorder()
    recorder.watch(graph, graph)(base[:2], base[1:3])
    assert recorder.verdict() == (0, ["it writes into inputs that share memory"])
    assert base.tolist() == [1, 1, 0, 0]


def test_a_parameter_is_not_copied_and_not_written():
    def graph(x, weight):
        weight.mul_(2)
        return (x * weight,)

    recorder, weight = Recorder(), nn.Parameter(torch.ones(1 << 20))
    recorder.watch(lambda x, w: (x * w,), lambda x, w: (x * w,))(torch.ones(1), weight)
    assert recorder.kept < weight.nbytes * 1.01, "the output alone is copied"
    recorder.watch(graph, graph)(torch.ones(1), weight)
    assert recorder.verdict()[0] == 0 and "writes into a parameter" in recorder.skipped[0]
    assert weight[0] == 2 and recorder.kept == 0


def test_eager_does_not_write_into_a_parameter_that_the_function_left_alone():
    def graph(x, weight):
        weight.mul_(2)
        return (x * weight,)

    recorder, weight = Recorder(), nn.Parameter(torch.ones(4))
    recorder.watch(graph, lambda x, w: (x * w,))(torch.ones(1), weight)
    assert recorder.verdict()[0] == 0 and "writes into a parameter" in recorder.skipped[0]
    assert weight[0] == 1


def test_eager_does_not_write_into_tensors_of_the_graph():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(x.sum())
            return (x * 2,)

    recorder, model = Recorder(), Counting()
    recorder.watch(model, double)(torch.ones(3))
    assert recorder.verdict()[0] == 0 and "writes into a parameter" in recorder.skipped[0]
    assert model.calls.item() == 0


@pytest.mark.parametrize("write", [lambda w: w.add_(1), lambda w: w.data.add_(1)])
def test_a_parameter_that_is_written_before_the_comparison_makes_no_verdict(write):
    recorder, weight = Recorder(), nn.Parameter(torch.ones(100))
    recorder.watch(lambda x, w: (x * w,), lambda x, w: (x * w,))(torch.ones(1), weight)
    write(weight)
    expected = "a parameter or a large input was changed before it was compared"
    assert recorder.verdict() == (0, [expected])


def test_what_is_kept_is_bounded():
    recorder = Recorder()
    recorder.comparisons.room._left = 4004
    large = torch.ones(1000)
    recorder.watch(lambda x: (x[:1] * 2,), lambda x: (x[:1] * 3,))(large)
    assert recorder.comparisons.room._left == 0, "an input with room is copied"
    with torch.inference_mode():
        recorder.watch(double, triple)(torch.ones(1000))
    recorder.watch(double, triple)(torch.ones(1000))
    recorder.comparisons.finish(10)
    assert recorder.comparisons.room._left == 4004 and len(recorder.wrong) == 1, "nothing is kept any more"
    assert recorder.skipped[1] == "more than 256 MiB would have to be kept for it"
    assert "too large to be copied, and PyTorch counts no writes into it" in recorder.skipped[0]


def test_a_large_input_is_compared_without_a_copy_if_it_is_not_written():
    recorder = Recorder()
    recorder.comparisons.room._left = 100
    recorder.watch(lambda x: (x[:1] * 2,), lambda x: (x[:1] * 3,))(torch.ones(1000))
    assert recorder.verdict() == (1, [])


def test_intermediate_results_are_bounded(monkeypatch):
    monkeypatch.setattr(side_run, "MOST_INTERMEDIATE", 1 << 20)

    def graph(x):
        parts = [x + number for number in range(4)]
        return (sum(part.sum() for part in parts),)

    recorder = Recorder()
    recorder.watch(graph, graph)(torch.ones(1 << 18))
    assert recorder.verdict() == (0, ["eager needs more than 1 MiB for it"])


def test_time_is_bounded(monkeypatch):
    monkeypatch.setattr(comparisons, "MOST_SECONDS", -1.0)
    recorder = Recorder()
    recorder.watch(double, triple)(torch.ones(1))
    assert recorder.verdict()[0] == 0 and "eager took longer than" in recorder.skipped[0]
    assert recorder.kept == 0


@pytest.mark.parametrize("active", [True, False])
def test_random_operators_are_not_run_and_the_service_draws_as_without_a_canary(active):
    def graph(x):
        return (nn.functional.dropout(x, 0.5, active),)

    recorder = Recorder()
    torch.manual_seed(7)
    output = recorder.watch(graph, graph)(torch.ones(64))[0]
    state = torch.random.get_rng_state()
    assert recorder.verdict() == (0, ["operators are random (dropout?)"] if active else [])
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(7)
    assert torch.equal(output, graph(torch.ones(64))[0])


def test_attention_without_dropout_is_compared():
    """The operator is tagged as random, and is not random without dropout."""
    attention = nn.functional.scaled_dot_product_attention
    recorder = Recorder()
    recorder.watch(lambda q: (attention(q, q, q),), lambda q: (attention(q, q, q) + 1,))(
        torch.randn(1, 2, 8, 16)
    )
    assert recorder.verdict() == (1, [])


def test_training_is_not_compared_and_its_backward_is_untouched():
    recorder = Recorder()
    with torch.enable_grad():
        weight = nn.Parameter(torch.ones(2))
        output = recorder.watch(lambda w: (w * 2,), lambda w: (w * 3,))(weight)[0]
        output.sum().backward()
    assert weight.grad.tolist() == [3, 3]
    assert recorder.verdict()[0] == 0 and "gradients are wanted" in recorder.skipped[0]


def test_ranks_do_not_wait_for_each_other():
    recorder, x = Recorder(), torch.ones(2)
    recorder.watch(lambda x: (torch.ops._c10d_functional.all_reduce(x, "sum", "0"),), lambda x: (x,))(x)
    assert recorder.verdict() == (0, ["ranks communicate in it"])


def test_an_operator_of_the_application_is_not_run():
    runs = []

    @torch.library.custom_op("canary_beside::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        runs.append(x)
        return x * 2

    recorder = Recorder()
    recorder.watch(lambda x: (torch.ops.canary_beside.doubled(x),), double)(torch.ones(2))
    assert recorder.verdict()[0] == 0 and runs == []
    assert "it calls canary_beside.doubled" in recorder.skipped[0]


def test_a_subclass_is_not_compared():
    class Own(torch.Tensor):
        pass

    recorder = Recorder()
    recorder.watch(double, triple)(torch.ones(2).as_subclass(Own))
    assert recorder.verdict() == (0, ["a tensor is of the subclass Own"])


def test_the_modes_of_the_call_are_taken_over_and_those_of_the_service_stay():
    def graph(x, weight):
        return (nn.functional.linear(x, weight),)

    recorder, x, weight = Recorder(), torch.randn(8, 64), nn.Parameter(torch.randn(64, 64))
    with torch.autocast("cpu", torch.bfloat16):
        output = recorder.watch(graph, graph)(x, weight)[0]
        assert output.dtype == torch.bfloat16
        recorder.comparisons.finish(10)
        assert torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()
    assert recorder.verdict() == (0, []) and not torch.is_grad_enabled()
    assert torch.get_default_device() == torch.device("cpu")


def test_a_graph_that_fails_is_no_verdict():
    recorder = Recorder()
    recorder.watch(lambda x: (torch.ops.aten.mm(x, x),), double, trace=False)(torch.ones(3))
    assert recorder.verdict()[0] == 0 and "RuntimeError" in recorder.skipped[0]
    assert recorder.kept == 0


def test_a_canary_that_fails_leaves_the_call_alone(monkeypatch):
    def fail(*_):
        raise MemoryError("planted")

    recorder = Recorder()
    monkeypatch.setattr("cachesvc_client.canary.beside.KeptCall", fail)
    assert recorder.watch(double, double)(torch.ones(1))[0].item() == 2
    assert recorder.verdict() == (0, ["MemoryError: planted"])


def test_outputs_of_other_shapes_and_numbers_are_wrong():
    recorder = Recorder()
    recorder.watch(double, lambda x: (x[:1] * 2,))(torch.ones(3))
    recorder.watch(double, lambda x: (x * 2, x))(torch.ones(3))
    assert recorder.verdict() == (2, [])


def test_a_first_call_that_raises_gives_no_verdict():
    calls = []

    def function(x):
        calls.append(x)
        if len(calls) == 1:
            raise ValueError("planted")
        return (x * 3,)

    recorder = Recorder()
    watched = recorder.watch(double, function)
    with pytest.raises(ValueError, match="planted"):
        watched(torch.ones(1))
    assert watched(torch.ones(1))[0].item() == 3
    assert recorder.verdict() == (1, []) and recorder.kept == 0


def test_a_second_thread_does_not_wait_for_the_first_call():
    recorder, entered, go_on = Recorder(), threading.Event(), threading.Event()

    def function(x):
        if not entered.is_set():
            entered.set()
            assert go_on.wait(10)
        return (x * 3,)

    watched = recorder.watch(double, function)
    outputs = []

    def call():
        with torch.no_grad():
            outputs.append(watched(torch.ones(1))[0].item())

    first = threading.Thread(target=call)
    first.start()
    assert entered.wait(10)
    call()
    assert outputs == [3]
    go_on.set()
    first.join(10)
    assert outputs == [3, 3] and recorder.verdict() == (1, []) and recorder.called == 1


def test_nothing_is_held_after_the_verdict():
    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (x * self.weight,)

    recorder, model, x = Recorder(), Weights(), torch.ones(3)
    weight, held = weakref.ref(model.weight), weakref.ref(x)
    watched = recorder.watch(model, lambda x: (x,))
    watched(x)
    assert recorder.verdict() == (0, [])
    del model, x
    gc.collect()
    assert weight() is None and held() is None and watched is not None


@pytest.mark.parametrize("function", [double, nn.Linear(1, 1), lambda x, y=1: (x, y)])
def test_what_cannot_be_hooked_stays_as_it_is(function):
    recorder = Recorder()
    trial = SideTrial(
        symbolic_trace(double),
        suspects=tuple,
        wrong=print,
        skipped=recorder.skipped.append,
        called=print,
        comparisons=Comparisons(),
    )
    code = getattr(function, "__code__", None)
    assert trial.watch(function) is function and not trial.watches
    assert getattr(function, "__code__", None) is code and "what was compiled is no" in recorder.skipped[0]


def test_a_graph_that_leaves_autocast_on_changes_no_later_comparison():
    def leaves_autocast_on(x):
        torch.amp.autocast_mode._enter_autocast("cpu", torch.bfloat16, True, False)
        return (torch.ops.aten.mm(x, x[:, :1]),)

    def multiply(x):
        return (x @ x,)

    recorder, x = Recorder(), torch.randn(64, 64)
    recorder.watch(leaves_autocast_on, multiply, trace=False)(x)
    recorder.watch(multiply, multiply)(x)
    recorder.watch(multiply, lambda x: (x @ x + 1,))(x)
    recorder.comparisons.finish(10)
    assert len(recorder.wrong) == 2, recorder.wrong
    assert "differs from eager by nan" in recorder.wrong[0] and "eager by 1 " in recorder.wrong[1]


@pytest.mark.parametrize("eager", [EagerGraph(refused="it holds tensors"), EagerGraph(b"damaged")])
def test_a_recorded_graph_is_used_where_the_comparison_is_not_required(eager):
    def fail(*_):
        raise ValueError("planted")

    skipped, function = [], closure(double)
    assert _watched(Comparison(fail, False, skipped.append), eager, function) is function
    assert skipped == [eager.refused or "ValueError: planted"]
    with pytest.raises(Exception, match=r".+"):
        _watched(Comparison(fail, True, skipped.append), eager, function)


def test_a_forked_child_has_no_comparisons_of_its_parent():
    """The child can compare calls of its own."""
    recorder = Recorder()
    recorder.watch(double, triple)(torch.ones(3))
    child_watched = recorder.watch(double, triple)
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        status = 1
        try:
            clean = not recorder.comparisons._waiting and recorder.kept == 0
            child_watched(torch.ones(3))
            status = 0 if clean and recorder.verdict() == (1, []) else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert recorder.verdict() == (1, [])


EXIT = """
import sys, torch._dynamo  # as in a process that compiles
from torch.fx import symbolic_trace
sys.path.insert(0, {tests!r})
from tests.canary.test_beside import Recorder, double, triple
recorder = Recorder()
class Loud(list):
    def append(self, line):
        print(line, flush=True)
recorder.wrong, recorder.skipped = Loud(), Loud()
with torch.no_grad():
    {graph}
"""


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ("recorder.watch(double, triple)(torch.ones(3))", "differs from eager by 1"),
        (
            "recorder.watch(lambda x: (x @ x @ x @ x @ x @ x,), lambda x: (x,))(torch.ones(3000, 3000));"
            "from cachesvc_client.canary import comparisons; comparisons.EXIT_SECONDS = 0.0",
            "the process ended before it was compared",
        ),
    ],
)
def test_an_exit_right_after_the_first_call_is_clean(graph, said):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = EXIT.format(tests=root, graph=graph)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert said in result.stdout

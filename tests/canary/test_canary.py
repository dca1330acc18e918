"""Test the canary beside a function that stands for restored code.

The tests show what the canary compares and what it leaves alone, and that the caller's tensors, random state
and modes are as they are without it."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from cachesvc_client.canary.trial import Trial


class TrialRecorder:
    """Records the reports of a trial."""

    def __init__(self, suspects=("revision",)):
        self.suspects = suspects
        self.wrong: list[str] = []
        self.skipped: list[str] = []

    def watch(self, graph, compiled):
        trial = Trial(
            graph,
            suspects=lambda: self.suspects,
            wrong=lambda _suspects, why: self.wrong.append(why),
            skipped=self.skipped.append,
        )
        return trial.watch(compiled)


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


def test_a_right_output_is_returned_unchanged():
    recorder = TrialRecorder()
    outputs = []

    def compiled(x):
        outputs.append((x * 2,))
        return outputs[-1]

    watched = recorder.watch(symbolic_trace(lambda x: (x * 2,)), compiled)
    x = torch.ones(3)
    assert watched(x) is outputs[0] and watched(x) is outputs[1]
    assert (recorder.wrong, recorder.skipped) == ([], [])


def test_a_wrong_output_never_reaches_the_caller():
    recorder, calls = TrialRecorder(), []

    def compiled(x):
        calls.append(x)
        return (x * 2 + 1,)

    watched = recorder.watch(symbolic_trace(lambda x: (x * 2,)), compiled)
    for _ in range(2):
        assert watched(torch.ones(3))[0].tolist() == [2, 2, 2]
    assert len(calls) == 1 and len(recorder.wrong) == 1
    assert "differs from eager by 1 where 0.00201 is allowed (values up to 2)" in recorder.wrong[0]


def test_only_restored_graphs_are_compared():
    recorder = TrialRecorder(suspects=())
    watched = recorder.watch(symbolic_trace(lambda x: (x * 2,)), lambda x: (x * 3,))
    assert watched(torch.ones(1))[0].item() == 3 and recorder.wrong == []


@pytest.mark.parametrize("wrong", [False, True])
def test_writes_into_inputs_happen_once(wrong):
    """The inputs include parameters, and two views of one tensor."""
    base = torch.zeros(4)
    left, right, weight = base[:2], base[1:3], nn.Parameter(torch.ones(2))

    def graph(left, right, weight):
        left.add_(1)
        weight.mul_(2)
        return (left + right + weight, left.view(2, 1))

    def compiled(left, right, weight):
        outputs = graph(left, right, weight)
        if wrong:
            left.add_(100)
        return outputs

    recorder = TrialRecorder()
    watched = recorder.watch(symbolic_trace(graph), compiled)
    total, view = watched(left, right, weight)
    assert base.tolist() == [1, 1, 0, 0] and weight.tolist() == [2, 2]
    assert total.tolist() == [1 + 1 + 2, 1 + 0 + 2]
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr(), "as without a canary"
    assert bool(recorder.wrong) is wrong and recorder.skipped == []
    watched(left, right, weight)
    assert base[0].item() == 2


def test_the_running_statistics_of_a_batch_norm_are_updated_once():
    """The operator writes them, and its schema does not say so."""
    norm = nn.BatchNorm1d(4)
    reference = nn.BatchNorm1d(4)
    batch = torch.randn(8, 4)

    def graph(x, mean, var):
        return (nn.functional.batch_norm(x, mean, var, None, None, True),)

    recorder = TrialRecorder()
    watched = recorder.watch(symbolic_trace(graph), graph_without_name(graph))
    watched(batch, norm.running_mean, norm.running_var)
    graph(batch, reference.running_mean, reference.running_var)
    assert torch.equal(norm.running_mean, reference.running_mean)
    assert torch.equal(norm.running_var, reference.running_var)
    assert (recorder.wrong, recorder.skipped) == ([], [])


def graph_without_name(function):
    def compiled(*args):
        return function(*args)

    return compiled


def test_random_operators_are_not_compared_and_draw_the_same_numbers():
    def function(x):
        return (nn.functional.dropout(x, 0.5, True),)

    recorder = TrialRecorder()
    watched = recorder.watch(symbolic_trace(function), graph_without_name(function))
    torch.manual_seed(7)
    output = watched(torch.ones(64))[0]
    torch.manual_seed(7)
    assert torch.equal(output, function(torch.ones(64))[0])
    assert recorder.wrong == [] and recorder.skipped == ["operators are random (dropout?)"]


def test_an_inactive_dropout_is_compared():
    recorder = TrialRecorder()
    graph = symbolic_trace(lambda x: (nn.functional.dropout(x, 0.5, False),))
    recorder.watch(graph, lambda x: (x + 1,))(torch.ones(4))
    assert len(recorder.wrong) == 1 and recorder.skipped == []


def test_attention_without_dropout_is_compared():
    """The operator is tagged as random, and is not random without dropout."""
    attention = nn.functional.scaled_dot_product_attention
    graph = symbolic_trace(lambda q: (attention(q, q, q),))
    recorder = TrialRecorder()
    recorder.watch(graph, lambda q: (attention(q, q, q) + 1,))(torch.randn(1, 2, 8, 16))
    assert len(recorder.wrong) == 1 and recorder.skipped == []


def test_training_is_not_compared():
    recorder = TrialRecorder()
    with torch.enable_grad():
        weight = nn.Parameter(torch.ones(2))
        output = recorder.watch(symbolic_trace(lambda w: (w * 2,)), lambda w: (w * 3,))(weight)[0]
        assert output.requires_grad and output.tolist() == [3, 3]
    assert recorder.wrong == [] and "gradients are wanted" in recorder.skipped[0]


def test_ranks_do_not_wait_for_each_other_in_a_trial():
    """The operator is not run: without a process group it would raise."""
    graph = symbolic_trace(lambda x: (torch.ops._c10d_functional.all_reduce(x.add_(1), "sum", "0"),))
    recorder, x = TrialRecorder(), torch.ones(2)
    assert recorder.watch(graph, lambda x: (x,))(x)[0].tolist() == [1, 1], (
        "operators that ran before it are undone"
    )
    assert recorder.skipped == ["ranks communicate in it"]


def test_a_graph_that_raises_leaves_everything_as_it_was():
    def function(x):
        torch._C._set_grad_enabled(True)
        torch.amp.autocast_mode._enter_autocast("cpu", torch.bfloat16, True, False)
        x.add_(1)
        return (torch.ops.aten.mm(x, x),)

    recorder, x = TrialRecorder(), torch.ones(2)
    trial = Trial(
        symbolic_trace(lambda x: (x,)),
        suspects=lambda: ("revision",),
        wrong=print,
        skipped=recorder.skipped.append,
    )
    trial._graph = function  # A trace holds no operators that fail.
    assert trial.watch(lambda x: (x,))(x)[0] is x
    assert x.tolist() == [1, 1] and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert "the graph does not run eagerly: RuntimeError" in recorder.skipped[0]


@pytest.mark.parametrize(("dtype", "passes"), [(torch.float32, False), (torch.bfloat16, True)])
def test_the_loosest_dtype_inside_sets_the_tolerance(dtype, passes):
    """The inputs and outputs are float32 in both cases."""
    recorder = TrialRecorder()
    graph = symbolic_trace(lambda x: ((x.to(dtype) * 2).float(),))
    recorder.watch(graph, lambda x: (x * 2 + 0.01,))(torch.ones(4))
    assert (recorder.wrong == []) is passes


def test_whole_numbers_that_depend_on_floating_numbers_are_no_evidence():
    recorder = TrialRecorder()
    recorder.watch(symbolic_trace(lambda x: (x.argmax(),)), lambda x: (x.argmin(),))(torch.arange(3.0))
    assert recorder.wrong == [] and "only whole numbers" in recorder.skipped[0]


def test_whole_numbers_alone_are_compared_exactly():
    recorder = TrialRecorder()
    recorder.watch(symbolic_trace(lambda x: (x + 1,)), lambda x: (x + 2,))(torch.arange(3))
    assert len(recorder.wrong) == 1


def test_outputs_of_other_shapes_are_wrong():
    recorder = TrialRecorder()
    watched = recorder.watch(symbolic_trace(lambda x: (x + 1,)), lambda x: (x[:1] + 1,))
    assert watched(torch.ones(3))[0].shape == (3,) and len(recorder.wrong) == 1


def test_a_first_call_that_raises_gives_no_verdict():
    calls = []

    def compiled(x):
        calls.append(x)
        if len(calls) == 1:
            raise ValueError("out of luck")
        return (x * 3,)

    recorder = TrialRecorder()
    watched = recorder.watch(symbolic_trace(lambda x: (x * 2,)), compiled)
    with pytest.raises(ValueError, match="out of luck"):
        watched(torch.ones(1))
    assert watched(torch.ones(1))[0].item() == 2 and len(recorder.wrong) == 1


def test_the_trial_keeps_no_reference_after_the_first_call():
    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (x * self.weight,)

    graph = symbolic_trace(Weights())
    reference = weakref.ref(graph.weight)
    watched = TrialRecorder().watch(graph, lambda x: (x,))
    x = torch.ones(3)
    input_held = weakref.ref(x)
    watched(x)
    del graph, x
    gc.collect()
    assert reference() is None and input_held() is None


def test_two_threads_at_the_first_call_get_one_verdict():
    recorder, entered, go_on = TrialRecorder(), threading.Event(), threading.Event()

    def compiled(x):
        entered.set()
        assert go_on.wait(10)
        return (x * 3,)

    watched = recorder.watch(symbolic_trace(lambda x: (x * 2,)), compiled)
    outputs = []

    def call():
        with torch.no_grad():
            outputs.append(watched(torch.ones(1))[0].item())

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.wait(10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert outputs == [2, 2] and len(recorder.wrong) == 1


def test_a_callable_that_is_no_function_stays_as_it_is():
    class Product:
        def __call__(self, x):
            return (x,)

    recorder, product = TrialRecorder(), Product()
    assert recorder.watch(symbolic_trace(lambda x: (x,)), product) is product
    assert "no function but Product" in recorder.skipped[0]

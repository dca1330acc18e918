"""The canary beside a function that stands for restored code: what it compares, what it leaves alone, and
that the caller's tensors, random state and modes are what they would be without it."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from cachesvc_client.canary.trial import Trial


class Heard:
    """Records what a trial reports."""

    def __init__(self, suspects=("revision",)):
        self.suspects = suspects
        self.wrong: list[str] = []
        self.skipped: list[str] = []

    def watch(self, graph, compiled):
        trial = Trial(
            graph,
            lambda: self.suspects,
            lambda _suspects, why: self.wrong.append(why),
            self.skipped.append,
        )
        return trial.watch(compiled)


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


def test_a_right_output_is_the_functions_own():
    heard = Heard()
    made = []

    def compiled(x):
        made.append((x * 2,))
        return made[-1]

    watched = heard.watch(symbolic_trace(lambda x: (x * 2,)), compiled)
    x = torch.ones(3)
    assert watched(x) is made[0] and watched(x) is made[1]
    assert (heard.wrong, heard.skipped) == ([], [])


def test_a_wrong_output_is_never_seen():
    heard, calls = Heard(), []

    def compiled(x):
        calls.append(x)
        return (x * 2 + 1,)

    watched = heard.watch(symbolic_trace(lambda x: (x * 2,)), compiled)
    for _ in range(2):
        assert watched(torch.ones(3))[0].tolist() == [2, 2, 2]
    assert len(calls) == 1 and len(heard.wrong) == 1
    assert "differs from eager by 1 where 0.00201 is allowed (values up to 2)" in heard.wrong[0]


def test_only_what_was_restored_is_compared():
    heard = Heard(suspects=())
    watched = heard.watch(symbolic_trace(lambda x: (x * 2,)), lambda x: (x * 3,))
    assert watched(torch.ones(1))[0].item() == 3 and heard.wrong == []


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_written_into_inputs_is_written_once(wrong):
    """Parameters too, and two inputs that are parts of one tensor."""
    base = torch.zeros(4)
    left, right, weight = base[:2], base[1:3], nn.Parameter(torch.ones(2))

    def graph(left, right, weight):
        left.add_(1)
        weight.mul_(2)
        return (left + right + weight, left.view(2, 1))

    def compiled(left, right, weight):
        made = graph(left, right, weight)
        if wrong:
            left.add_(100)
        return made

    heard = Heard()
    watched = heard.watch(symbolic_trace(graph), compiled)
    total, view = watched(left, right, weight)
    assert base.tolist() == [1, 1, 0, 0] and weight.tolist() == [2, 2]
    assert total.tolist() == [1 + 1 + 2, 1 + 0 + 2]
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr(), "as without a canary"
    assert bool(heard.wrong) is wrong and heard.skipped == []
    watched(left, right, weight)
    assert base[0].item() == 2


def test_the_running_statistics_of_a_batch_norm_are_counted_once():
    """Its operator writes them without saying so."""
    norm = nn.BatchNorm1d(4)
    reference = nn.BatchNorm1d(4)
    batch = torch.randn(8, 4)

    def graph(x, mean, var):
        return (nn.functional.batch_norm(x, mean, var, None, None, True),)

    heard = Heard()
    watched = heard.watch(symbolic_trace(graph), graph_without_name(graph))
    watched(batch, norm.running_mean, norm.running_var)
    graph(batch, reference.running_mean, reference.running_var)
    assert torch.equal(norm.running_mean, reference.running_mean)
    assert torch.equal(norm.running_var, reference.running_var)
    assert (heard.wrong, heard.skipped) == ([], [])


def graph_without_name(function):
    def compiled(*args):
        return function(*args)

    return compiled


def test_random_operators_are_not_compared_and_draw_what_they_would_have_drawn():
    def function(x):
        return (nn.functional.dropout(x, 0.5, True),)

    heard = Heard()
    watched = heard.watch(symbolic_trace(function), graph_without_name(function))
    torch.manual_seed(7)
    seen = watched(torch.ones(64))[0]
    torch.manual_seed(7)
    assert torch.equal(seen, function(torch.ones(64))[0])
    assert heard.wrong == [] and heard.skipped == ["operators are random (dropout?)"]


def test_a_dropout_that_drops_nothing_is_compared():
    heard = Heard()
    graph = symbolic_trace(lambda x: (nn.functional.dropout(x, 0.5, False),))
    heard.watch(graph, lambda x: (x + 1,))(torch.ones(4))
    assert len(heard.wrong) == 1 and heard.skipped == []


def test_attention_without_dropout_is_compared():
    """Its operator may be random, and is tagged so, but is not."""
    attention = nn.functional.scaled_dot_product_attention
    graph = symbolic_trace(lambda q: (attention(q, q, q),))
    heard = Heard()
    heard.watch(graph, lambda q: (attention(q, q, q) + 1,))(torch.randn(1, 2, 8, 16))
    assert len(heard.wrong) == 1 and heard.skipped == []


def test_training_is_not_compared():
    heard = Heard()
    with torch.enable_grad():
        weight = nn.Parameter(torch.ones(2))
        made = heard.watch(symbolic_trace(lambda w: (w * 2,)), lambda w: (w * 3,))(weight)[0]
        assert made.requires_grad and made.tolist() == [3, 3]
    assert heard.wrong == [] and "gradients are wanted" in heard.skipped[0]


def test_ranks_that_would_wait_for_each_other_do_not():
    """The operator is not run: without a process group it would raise."""
    graph = symbolic_trace(lambda x: (torch.ops._c10d_functional.all_reduce(x.add_(1), "sum", "0"),))
    heard, x = Heard(), torch.ones(2)
    assert heard.watch(graph, lambda x: (x,))(x)[0].tolist() == [1, 1], "what ran before it is undone"
    assert heard.skipped == ["ranks communicate in it"]


def test_a_graph_that_raises_leaves_everything_as_it_was():
    def function(x):
        torch._C._set_grad_enabled(True)
        torch.amp.autocast_mode._enter_autocast("cpu", torch.bfloat16, True, False)
        x.add_(1)
        return (torch.ops.aten.mm(x, x),)

    heard, x = Heard(), torch.ones(2)
    trial = Trial(symbolic_trace(lambda x: (x,)), lambda: ("revision",), print, heard.skipped.append)
    trial._graph = function  # no trace holds operators that fail
    assert trial.watch(lambda x: (x,))(x)[0] is x
    assert x.tolist() == [1, 1] and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert "the graph does not run eagerly: RuntimeError" in heard.skipped[0]


@pytest.mark.parametrize(("dtype", "passes"), [(torch.float32, False), (torch.bfloat16, True)])
def test_the_tolerance_is_that_of_the_loosest_dtype_inside(dtype, passes):
    """The inputs and outputs are float32 either way."""
    heard = Heard()
    graph = symbolic_trace(lambda x: ((x.to(dtype) * 2).float(),))
    heard.watch(graph, lambda x: (x * 2 + 0.01,))(torch.ones(4))
    assert (heard.wrong == []) is passes


def test_whole_numbers_that_floating_ones_chose_are_no_evidence():
    heard = Heard()
    heard.watch(symbolic_trace(lambda x: (x.argmax(),)), lambda x: (x.argmin(),))(torch.arange(3.0))
    assert heard.wrong == [] and "only whole numbers" in heard.skipped[0]


def test_whole_numbers_alone_are_compared_exactly():
    heard = Heard()
    heard.watch(symbolic_trace(lambda x: (x + 1,)), lambda x: (x + 2,))(torch.arange(3))
    assert len(heard.wrong) == 1


def test_outputs_of_other_shapes_are_wrong():
    heard = Heard()
    watched = heard.watch(symbolic_trace(lambda x: (x + 1,)), lambda x: (x[:1] + 1,))
    assert watched(torch.ones(3))[0].shape == (3,) and len(heard.wrong) == 1


def test_a_first_call_that_raises_is_no_verdict():
    calls = []

    def compiled(x):
        calls.append(x)
        if len(calls) == 1:
            raise ValueError("out of luck")
        return (x * 3,)

    heard = Heard()
    watched = heard.watch(symbolic_trace(lambda x: (x * 2,)), compiled)
    with pytest.raises(ValueError, match="out of luck"):
        watched(torch.ones(1))
    assert watched(torch.ones(1))[0].item() == 2 and len(heard.wrong) == 1


def test_nothing_is_held_after_the_first_call():
    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (x * self.weight,)

    graph = symbolic_trace(Weights())
    held = weakref.ref(graph.weight)
    watched = Heard().watch(graph, lambda x: (x,))
    x = torch.ones(3)
    input_held = weakref.ref(x)
    watched(x)
    del graph, x
    gc.collect()
    assert held() is None and input_held() is None


def test_two_threads_at_the_first_call_get_one_verdict():
    heard, entered, go_on = Heard(), threading.Event(), threading.Event()

    def compiled(x):
        entered.set()
        assert go_on.wait(10)
        return (x * 3,)

    watched = heard.watch(symbolic_trace(lambda x: (x * 2,)), compiled)
    made = []

    def call():
        with torch.no_grad():
            made.append(watched(torch.ones(1))[0].item())

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.wait(10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert made == [2, 2] and len(heard.wrong) == 1


def test_what_is_no_function_is_left_as_it_is():
    class Product:
        def __call__(self, x):
            return (x,)

    heard, product = Heard(), Product()
    assert heard.watch(symbolic_trace(lambda x: (x,)), product) is product
    assert "no function but Product" in heard.skipped[0]

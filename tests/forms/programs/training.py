"""Forms of training: backward passes, optimizers, schedules, checkpointing."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .form import Small, form, steps, values

TRAINING, OPTIMIZERS = "training", "compiled steps of optimizers"


class Trained(Small):
    pass


@form(TRAINING)
def forward_and_backward():
    """a compiled model; the optimizer is not compiled"""
    return steps(torch.compile(Trained()), values(4, 8))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x):
        return F.dropout(self.linear(self.norm(x)), 0.1, self.training)


@form(TRAINING)
def batch_norm_and_dropout():
    """BatchNorm and dropout; `train()`, then `eval()`"""
    model = Normed()
    compiled = torch.compile(model)
    torch.manual_seed(1)
    shapes = [one.shape for one in steps(compiled, values(4, 8))]
    model.eval()
    with torch.no_grad():
        output = compiled(values(4, 8))
    return [torch.tensor([len(shapes)]), output.isfinite().float(), model.norm.running_mean]


class Loss(Small):
    def forward(self, x, target):
        return F.cross_entropy(super().forward(x), target)


@form(TRAINING)
def loss_inside():
    """the loss inside of the compiled model"""
    return steps(torch.compile(Loss()), values(4, 8), torch.tensor([0, 1, 2, 3]))


class InStep(Small):
    pass


@form(TRAINING)
def whole_step():
    """a compiled function with forward, `backward()` and the optimizer's step"""
    model = InStep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return [step(values(4, 8)), step(values(4, 8)), *model.parameters()]


class Loop(Small):
    pass


def train_step(model, x):
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


@form(TRAINING)
def step_without_optimizer():
    """a compiled function with forward and `backward()`"""
    model = Loop()
    compiled = torch.compile(train_step)
    losses = [compiled(model, values(4, 8)) for _ in range(2)]
    return [*losses, *(one.grad for one in model.parameters())]


class Checkpointed(Small):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


@form(TRAINING)
def checkpointing():
    """activation checkpointing, `use_reentrant=False`"""
    return steps(torch.compile(Checkpointed()), values(4, 8))


class Accumulated(Small):
    pass


@form(TRAINING)
def accumulation():
    """gradients of two batches, clipped"""
    model = Accumulated()
    compiled = torch.compile(model)
    for size in (4, 4):
        compiled(values(size, 8)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return [norm, *(one.grad for one in model.parameters())]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0]


class Functional(Small):
    def forward(self, x):
        return Square.apply(super().forward(x))


@form(TRAINING)
def autograd_function():
    """`torch.autograd.Function`"""
    return steps(torch.compile(Functional()), values(4, 8))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.low, self.high = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x):
        return self.base(x) + self.high(self.low(x))


@form(TRAINING)
def low_rank():
    """frozen weights with low-rank updates (LoRA)"""
    model = Frozen()
    compiled = torch.compile(model)
    compiled(values(4, 8)).sum().backward()
    return [one.grad for one in model.parameters() if one.grad is not None]


class Tensorhook(Small):
    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(doubled)
        return y.sin()


def doubled(gradient):
    return gradient * 2


@form(TRAINING)
def hook_of_tensor():
    """a hook of a tensor inside of the model"""
    return steps(torch.compile(Tensorhook()), values(4, 8))


def loss_of(weight, x):
    return (x @ weight).square().sum()


@form(TRAINING)
def functional_gradient():
    """`torch.func.grad` and `vmap`"""
    return torch.compile(torch.func.grad(loss_of))(values(8, 8), values(4, 8))


@form(TRAINING)
def recurrent():
    """an LSTM"""
    with torch.no_grad():
        return torch.compile(nn.LSTM(8, 8))(values(2, 3, 8))[0]


def optimized(make, *, schedule=None, compiled_schedule=False):
    """Return the parameters after three compiled steps of an optimizer."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    optimizer = make(model.parameters())
    scheduler = schedule(optimizer) if schedule else None

    @torch.compile(fullgraph=False)
    def step():
        optimizer.step()
        if scheduler is not None and compiled_schedule:
            scheduler.step()

    for _ in range(3):
        model(values(4, 8)).square().sum().backward()
        step()
        if scheduler is not None and not compiled_schedule:
            scheduler.step()
        optimizer.zero_grad()
    return list(model.parameters())


@form(OPTIMIZERS)
def sgd():
    """SGD with momentum"""
    return optimized(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))


@form(OPTIMIZERS)
def adam():
    """Adam"""
    return optimized(lambda parameters: torch.optim.Adam(parameters, lr=1e-2))


@form(OPTIMIZERS)
def adamw_foreach():
    """AdamW, `foreach=True`"""
    return optimized(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True))


@form(OPTIMIZERS)
def adamw_scheduler():
    """AdamW with a learning rate in a tensor, and a scheduler outside"""
    return optimized(
        lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(1e-2)),
        schedule=lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5),
    )


@form(OPTIMIZERS)
def method_of_optimizer():
    """`torch.compile(optimizer.step)`"""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = torch.compile(optimizer.step)
    for _ in range(2):
        model(values(4, 8)).square().sum().backward()
        step()
        optimizer.zero_grad()
    return list(model.parameters())

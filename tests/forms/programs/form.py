"""The table of forms, and what most of them use.

A form is a function of a few lines; its docstring is its row of the table. A form's own objects have
names of their own, so that no form changes what another one traces.
"""

import os

import torch

FORMS = {}
SERVING = os.environ.get("FORMS_STAGE") == "serve"
"""Whether this process is a service: some forms are another one in their service than in their builder."""


def form(group):
    """Take a function as a form of a group of the table."""

    def take(function):
        FORMS[function.__name__] = (group, function)
        return function

    return take


def values(*shape):
    """Return a tensor with the same values in every process."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def steps(model, *inputs, optimizer=None, times=2):
    """Return the gradients of steps of training, and the parameters after them."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for _ in range(times):
        model(*inputs).sum().backward()
        gradients += [one.grad.clone() for one in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return [*gradients, *model.parameters()]


class Small(torch.nn.Module):
    """A linear layer and a product."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) @ self.linear.weight

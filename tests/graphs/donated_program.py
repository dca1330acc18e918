"""Compile models of one backward graph in one cache, and print as JSON what their backwards overwrote.

The first model's backward may overwrite the product that its forward saved. The second model returns that
product. The third is the first in a process that keeps graphs for a second backward."""

import json

from cachesvc_client.process.process import process

process().arm()

import torch  # noqa: E402
import torch._functorch.config as functorch  # noqa: E402

x = torch.arange(64.0).reshape(8, 8) / 50
weight = (torch.arange(64.0).reshape(8, 8) / 70).requires_grad_()


def first(x, weight):
    product = x @ weight
    return (product.sin() * product).sum()


def second(x, weight):
    product = x @ weight
    return product.detach(), (product.sin() * product).sum()


def gradient(loss, **options):
    weight.grad = None
    loss.backward(**options)
    return weight.grad.clone()


loss = torch.compile(first)(x, weight)
gradient(loss)
try:
    gradient(torch.compile(first)(x, weight), retain_graph=True)
    overwrites = False
except RuntimeError as error:
    overwrites = "donated buffer" in str(error)
torch._dynamo.reset()
product, loss = torch.compile(second)(x, weight)
before = product.clone()
gradient(loss)
changed = not torch.equal(product, before)
torch._dynamo.reset()
with functorch.patch(donated_buffer=False):
    loss = torch.compile(first)(x, weight)
    equal = torch.equal(gradient(loss, retain_graph=True), gradient(loss))
answer = {
    "backward of the first model overwrites": overwrites,
    "output of the second model changed": changed,
    "second backward equals the first": equal,
}
print(json.dumps(answer))

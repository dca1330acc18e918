"""Define operators of a user's library: one opaque to the compiler, and on a GPU one of Triton code."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("cachesvc_matrix::clipped_square", mutates_args=())
def clipped_square(x: Tensor) -> Tensor:
    """Return the square, at most 4."""
    return x.square().clamp(max=4)


@clipped_square.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx, inputs, output) -> None:  # noqa: ARG001 - torch calls it by these names
    ctx.save_for_backward(*inputs)


def _gradient(context, gradient: Tensor) -> Tensor:
    (x,) = context.saved_tensors
    return gradient * 2 * x * (x.abs() < 2)


clipped_square.register_autograd(_gradient, setup_context=_keep)


if torch.cuda.is_available():
    import user_kernels

    @torch.library.triton_op("cachesvc_matrix::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        """Return twice the input, by a Triton kernel that the compiler sees."""
        out = torch.empty_like(x)
        grid = (user_kernels.triton.cdiv(x.numel(), 1024),)
        torch.library.wrap_triton(user_kernels._scaled_sum)[grid](x, x, out, x.numel(), 1.0, BLOCK=1024)
        return out

    doubled.register_autograd(lambda _, gradient: gradient * 2)

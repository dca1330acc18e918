"""Operators of a user's library: one opaque to the compiler, and on a GPU one of Triton code."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("cachesvc_matrix::clipped_square", mutates_args=())
def clipped_square(given: Tensor) -> Tensor:
    """The square, at most 4."""
    return given.square().clamp(max=4)


@clipped_square.register_fake
def _(given: Tensor) -> Tensor:
    return torch.empty_like(given)


def _keep(ctx, inputs, output) -> None:  # noqa: ARG001 - torch calls it by these names
    ctx.save_for_backward(*inputs)


def _gradient(context, gradient: Tensor) -> Tensor:
    (given,) = context.saved_tensors
    return gradient * 2 * given * (given.abs() < 2)


clipped_square.register_autograd(_gradient, setup_context=_keep)


if torch.cuda.is_available():
    import user_kernels

    @torch.library.triton_op("cachesvc_matrix::doubled", mutates_args=())
    def doubled(given: Tensor) -> Tensor:
        """Twice the given, by a Triton kernel that the compiler sees."""
        out = torch.empty_like(given)
        grid = (user_kernels.triton.cdiv(given.numel(), 1024),)
        torch.library.wrap_triton(user_kernels._scaled_sum)[grid](
            given, given, out, given.numel(), 1.0, BLOCK=1024
        )
        return out

    doubled.register_autograd(lambda _, gradient: gradient * 2)

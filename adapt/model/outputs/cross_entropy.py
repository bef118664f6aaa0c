"""Cross entropy of a linear layer's outputs, some rows at a time.

So a large vocabulary's scores never stand in memory whole. Gradients are taken on the way, while a piece's scores are
there (as in Cut Cross-Entropy, arXiv 2411.09009, and liger-kernel, arXiv 2410.10989), so nothing is computed twice.
That is before fp16's loss scale can help, so in fp16 each row of a product is scaled by what suits it.
"""

from typing import Any

import torch
from torch import Tensor

PIECE_BYTES = 256 * 2**20
"""Scores that stand in memory at once [bytes of fp32]."""
BLOCK_BYTES = {"cpu": 4 * 2**20, "cuda": 64 * 2**20}
"""The part of these that is worked on at once [bytes of fp32], by device: on a CPU, what its caches hold."""


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses of `hidden @ weight.T + bias` against targets, and their sum.

    Args:
        hidden: [T, H].
        weight: [V, H].
        bias: [V] or None.
        targets: int64 [T].

    Returns:
        The sum of the losses [nats], float32 scalar, and each of them, float32 [T], without gradient.
    """
    total, losses = _LinearCrossEntropy.apply(hidden, weight, bias, targets)  # type: ignore[no-untyped-call]
    return total, losses


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Any:
        needs_hidden, needs_weight, needs_bias, _ = context.needs_input_grad
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        states, matrix = hidden.to(dtype), weight.to(dtype)
        losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        grads: list[Tensor | None] = [
            torch.empty_like(hidden, dtype=_scalable(hidden.dtype)) if needs_hidden else None,
            None,
            torch.zeros_like(bias) if needs_bias and bias is not None else None,
        ]
        with torch.autocast(device, enabled=False):
            for begin, end in pieces(len(targets), len(weight), PIECE_BYTES):
                errors = states[begin:end] @ matrix.T  # scores, until their errors take their place
                if dtype == torch.float16:
                    errors = errors.float()  # see `product`
                for first, last in pieces(end - begin, len(weight), BLOCK_BYTES[device]):
                    rows = slice(begin + first, begin + last)
                    losses[rows], of_block = _errors(errors[first:last], bias, targets[rows, None])
                    if any(context.needs_input_grad):
                        errors[first:last] = of_block
                    if grads[2] is not None:
                        grads[2] += of_block.sum(0)
                if grads[0] is not None:
                    grads[0][begin:end] = product(errors, matrix)
                if needs_weight:
                    part = product(errors.T, states[begin:end])
                    grads[1] = part.to(weight.dtype) if grads[1] is None else grads[1].add_(part)
        if needs_weight and grads[1] is None:  # there are no targets
            grads[1] = torch.zeros_like(weight)
        context.save_for_backward(*grads)
        context.dtype = hidden.dtype
        context.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(context: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = (
            None if grad is None else grad.mul_(gradient.to(grad.dtype)) for grad in context.saved_tensors
        )
        return None if hidden is None else hidden.to(context.dtype), weight, bias, None


def _errors(scores: Tensor, bias: Tensor | None, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [rows], and the probabilities less the targets [rows, V], both fp32. One exponential a score."""
    scores = scores.float() if bias is None else scores + bias.float()
    losses = scores.amax(1, keepdim=True) - scores.gather(1, wanted)
    errors = scores.softmax(1)
    losses -= errors.amax(1, keepdim=True).log()  # the largest probability is 1 / V at least
    errors.scatter_add_(1, wanted, torch.full_like(wanted, -1.0, dtype=errors.dtype))
    return losses.squeeze(1), errors


def product(errors: Tensor, factor: Tensor) -> Tensor:
    """`errors @ factor` in the factor's precision.

    fp16 has no numbers below 6e-8, and most probabilities of a large vocabulary are smaller; nor any above 65504. So
    there every row is scaled to where its products must fit, and they are scaled back in fp32.

    Args:
        errors: [rows, N], fp32 where the factor is fp16.
        factor: [N, columns].
    """
    if factor.dtype != torch.float16:
        return errors.to(factor.dtype) @ factor
    largest = torch.stack(factor.aminmax()).abs().max().float().clamp(min=1.0)
    rows = torch.linalg.vector_norm(errors, ord=1, dim=1, keepdim=True).clamp(min=1e-30)
    scale = torch.finfo(torch.float16).max / 2 / largest / rows
    scaled = torch.mul(errors, scale, out=torch.empty_like(errors, dtype=torch.float16))
    return (scaled @ factor).float().div_(scale)


def _scalable(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.float16 else dtype


def pieces(rows: int, vocabulary: int, size: int) -> list[tuple[int, int]]:
    """Rows [begin, end) whose scores fit `size` [bytes of fp32], of about equal number."""
    most = max(1, size // (4 * vocabulary))
    count = -(-rows // most)
    ends = [rows * (number + 1) // count for number in range(count)]
    return list(zip([0, *ends], ends, strict=False))

"""Cross entropy of a linear layer's outputs, some rows at a time.

So a large vocabulary's scores never stand in memory whole. Gradients are taken on the way, while a piece's scores are
there (as in Cut Cross-Entropy, arXiv 2411.09009, and liger-kernel, arXiv 2410.10989), so nothing is computed twice.
That is before fp16's loss scale can help, so in fp16 each row of a product is scaled by what suits it.
"""

from typing import Any

import torch
from torch import Tensor

PIECE_BYTES = 256 * 2**20
"""Scores that stand in memory at once [bytes]."""


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
            for begin, end in pieces(len(targets), len(weight)):
                scores = (states[begin:end] @ matrix.T).float()
                if bias is not None:
                    scores += bias
                wanted = targets[begin:end, None]
                total = scores.logsumexp(1, keepdim=True)
                losses[begin:end] = (total - scores.gather(1, wanted)).squeeze(1)
                if not any(context.needs_input_grad):
                    continue
                error = scores.sub_(total).exp_()  # the softmax, from which the next line subtracts the target
                error.scatter_add_(1, wanted, torch.full_like(wanted, -1.0, dtype=error.dtype))
                if grads[2] is not None:
                    grads[2] += error.sum(0)
                if grads[0] is not None:
                    grads[0][begin:end] = product(error, matrix)
                if needs_weight:
                    part = product(error.T, states[begin:end])
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


def product(errors: Tensor, factor: Tensor) -> Tensor:
    """`errors @ factor` in the factor's precision.

    fp16 has no numbers below 6e-8, and most probabilities of a large vocabulary are smaller; nor any above 65504. So
    there every row is scaled to where its products must fit, and they are scaled back in fp32.

    Args:
        errors: fp32 [rows, N].
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


def pieces(rows: int, vocabulary: int) -> list[tuple[int, int]]:
    """Rows [begin, end) whose scores fit PIECE_BYTES, of about equal number."""
    most = max(1, PIECE_BYTES // (4 * vocabulary))
    count = -(-rows // most)
    ends = [rows * (number + 1) // count for number in range(count)]
    return list(zip([0, *ends], ends, strict=False))

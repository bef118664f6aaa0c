"""Computes cross entropy and divergence of a linear layer's outputs (scores), some rows (a piece) at a time.

So the scores of all rows are never in memory together, even for a large vocabulary. Gradients are computed together
with the loss, while the scores of a piece are in memory (as in Cut Cross-Entropy, arXiv 2411.09009, and liger-kernel,
arXiv 2410.10989). So no scores are computed twice. At this time, the loss scale of fp16 training is not applied yet. So
in fp16, `product` scales each row. The divergence is used to distil models with large vocabularies.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

PIECE_BYTES = 256 * 2**20
"""Maximum size of the scores of a piece [bytes of fp32]. Only the scores of one piece are in memory at a time."""
BLOCK_BYTES = {"cpu": 4 * 2**20, "cuda": 64 * 2**20}
"""Maximum size of a block, a part of a piece that is processed at a time [bytes of fp32], keyed by device.

A block fits into the caches of a CPU.
"""
MULTIPLE = {"cpu": 1, "cuda": 64}
"""Score matrices get extra columns, so that their width is a multiple of this number. Keyed by device.

GPUs have slow kernels for rows that do not begin at a multiple of 16 bytes, for example with RoBERTa's 50,265 words.
"""


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the cross entropy of `hidden @ weight.T + bias` against targets.

    Args:
        hidden: inputs of the linear layer, [T, H].
        weight: weight of the linear layer, [V, H].
        bias: bias of the linear layer, [V], or None.
        targets: index of the correct output for each input, int64 [T].

    Returns:
        The sum of the losses [nats], float32 scalar, and the loss of each target, float32 [T], without gradient.
    """
    factors = _where_enabled(hidden, weight, bias)
    total, losses, _ = _LinearCrossEntropy.apply(*factors, targets, None)  # type: ignore[no-untyped-call]
    return total, losses


def cross_entropy_and_samples(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, draws: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes the loss of `linear_cross_entropy`, and draws an output for each input from the predicted distribution.

    Output k is drawn if P(1) + ... + P(k - 1) <= u < P(1) + ... + P(k), where u is a random number in `draws` and P the
    predicted probabilities, which are summed in fp64.

    Args:
        hidden: inputs of the linear layer, [T, H].
        weight: weight of the linear layer, [V, H].
        bias: bias of the linear layer, [V], or None.
        targets: index of the correct output for each input, int64 [T].
        draws: uniform random numbers u in [0, 1), float64 [T].

    Returns:
        The sum of the losses [nats], float32 scalar, and the drawn outputs, int64 [T]. The outputs have no gradient.
    """
    factors = _where_enabled(hidden, weight, bias)
    total, _, samples = _LinearCrossEntropy.apply(*factors, targets, draws)  # type: ignore[no-untyped-call]
    return total, samples


def _where_enabled(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns the tensors, detached if gradients are disabled.

    `needs_input_grad` is also true if gradients are disabled, so measurements would otherwise compute gradients too.
    """
    if torch.is_grad_enabled():
        return tensors
    return tuple(None if tensor is None else tensor.detach() for tensor in tensors)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, draws: Tensor | None
    ) -> Any:
        needs_hidden, needs_weight, needs_bias, *_ = context.needs_input_grad
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        states, matrix, width = hidden.to(dtype), weight.to(dtype), len(weight)
        if missing := -width % MULTIPLE[device]:
            matrix = pad(matrix, (0, 0, 0, missing))
        losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        samples = torch.empty_like(targets) if draws is not None else losses.new_empty(0)
        grads: list[Tensor | None] = [
            torch.empty_like(hidden, dtype=_scalable(hidden.dtype)) if needs_hidden else None,
            None,
            torch.zeros_like(bias) if needs_bias and bias is not None else None,
        ]
        with torch.autocast(device, enabled=False):
            for begin, end in pieces(len(targets), width, PIECE_BYTES):
                errors = states[begin:end] @ matrix.T  # these are the scores, overwritten by errors below
                if dtype == torch.float16:
                    errors = errors.float()  # `product` explains why
                errors[:, width:] = 0
                for first, last in pieces(end - begin, width, BLOCK_BYTES[device]):
                    rows = slice(begin + first, begin + last)
                    losses[rows], of_block = _errors(errors[first:last, :width], bias, targets[rows, None])
                    if draws is not None:
                        ones = torch.ones_like(targets[rows, None], dtype=of_block.dtype)
                        samples[rows] = drawn_from(of_block.scatter_add(1, targets[rows, None], ones), draws[rows])
                    if any(context.needs_input_grad):
                        errors[first:last, :width] = of_block
                    if grads[2] is not None:
                        grads[2] += of_block.sum(0)
                if grads[0] is not None:
                    grads[0][begin:end] = product(errors, matrix)
                if needs_weight:
                    part = product(errors.T, states[begin:end])[:width]
                    grads[1] = part.to(weight.dtype) if grads[1] is None else grads[1].add_(part)
        if needs_weight and grads[1] is None:  # the loop does not run if there are no targets
            grads[1] = torch.zeros_like(weight)
        context.save_for_backward(*grads)
        context.dtype = hidden.dtype
        context.mark_non_differentiable(losses, samples)
        return losses.sum(), losses, samples

    @staticmethod
    def backward(context: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = (
            None if grad is None else grad.mul_(gradient.to(grad.dtype)) for grad in context.saved_tensors
        )
        return None if hidden is None else hidden.to(context.dtype), weight, bias, None, None


def _errors(scores: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Computes losses [rows], and probabilities minus targets [rows, V], both fp32, with one exponential per score."""
    scores = scores.float() if bias is None else scores + bias.float()
    losses = scores.amax(1, keepdim=True) - scores.gather(1, targets)
    errors = scores.softmax(1)
    losses -= errors.amax(1, keepdim=True).log()  # never log 0, as the largest probability is at least 1 / V
    errors.scatter_add_(1, targets, torch.full_like(targets, -1.0, dtype=errors.dtype))
    return losses.squeeze(1), errors


def drawn_from(probabilities: Tensor, draws: Tensor) -> Tensor:
    """Draws an index from each row of probabilities, int64 [rows]. See `cross_entropy_and_samples` for the rule.

    Args:
        probabilities: fp32 or fp64, [rows, V].
        draws: uniform random numbers in [0, 1), float64 [rows].
    """
    ends = probabilities.double().cumsum(1)
    found = torch.searchsorted(ends, draws[:, None] * ends[:, -1:], right=True).squeeze(1)
    return found.clamp(max=probabilities.shape[1] - 1)


def product(errors: Tensor, factor: Tensor) -> Tensor:
    """Computes `errors @ factor` in the factor's precision.

    With fp16, each row is scaled such that its products are in the range of fp16, and the products are scaled back in
    fp32. The positive numbers of fp16 are between 6e-8 and 65504, but most probabilities of a large vocabulary are
    smaller.

    Args:
        errors: the left matrix, [rows, N]; fp32 if the factor is fp16.
        factor: the right matrix, [N, columns].
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
    """Divides rows into pieces [begin, end) of about equal length. Each piece's scores fit into `size` [fp32 bytes]."""
    most = max(1, size // (4 * vocabulary))
    count = -(-rows // most)
    ends = [rows * (number + 1) // count for number in range(count)]
    return list(zip([0, *ends], ends, strict=False))


DIVERGENCE_PIECE_BYTES = 64 * 2**20
"""Maximum size of the scores that are in memory together for the divergence, per model [bytes of fp32]."""


class LinearScores(NamedTuple):
    """The tensors from which the scores states @ weight.T + bias are computed, piece by piece."""

    states: Tensor
    """Inputs of the linear layer, [T, H]."""
    weight: Tensor
    """Weight of the linear layer, [V, H]."""
    bias: Tensor | None
    """Bias of the linear layer, [V], or None."""

    def rows(self, begin: int, end: int) -> Tensor:
        """Computes the scores of the rows [begin, end) in the tensors' precision. Returns fp32 [rows, V]."""
        return linear(self.states[begin:end], self.weight, self.bias).float()

    def first_words(self, count: int) -> "LinearScores":
        """Restricts the scores to the first `count` words of the vocabulary. Weight and bias are views, not copies."""
        return LinearScores(self.states, self.weight[:count], None if self.bias is None else self.bias[:count])

    def to(self, dtype: torch.dtype) -> "LinearScores":
        """Converts the tensors to another data type."""
        return LinearScores(
            self.states.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)
        )


def linear_divergence(scores: LinearScores, wanted: Sequence[LinearScores], temperature: float) -> Tensor:
    """Computes T^2 KL(mean of softmax(wanted / T) over teachers || softmax(scores / T)), summed over rows.

    With one teacher, this is the distillation loss of Hinton et al. 2015 (arXiv 1503.02531), who also distil the mean
    of several models' probabilities (an ensemble).

    Args:
        scores: the student's tensors. Gradients flow to all of them.
        wanted: each teacher's tensors, which get no gradients. Teachers may differ in width. Models with the same
            tokenizer may have weights that are padded to different numbers of rows V. Only the first rows, which all
            models have, are compared.
        temperature: T. With the factor T^2, gradients are about as large as at T = 1.

    Returns:
        The sum [nats], float32 scalar.
    """
    factors = _where_enabled(*scores)
    total: Tensor = _LinearDivergence.apply(*factors, tuple(wanted), temperature)  # type: ignore[no-untyped-call]
    return total


def _mean_logs(teachers: Sequence[LinearScores], begin: int, end: int, temperature: float) -> Tensor:
    """Returns the log of the teachers' mean probabilities, fp32 [rows, V]. At most two score matrices are in memory."""
    first, *others = teachers
    logs = first.rows(begin, end).div_(temperature).log_softmax(1)
    for teacher in others:
        logs = torch.logaddexp(logs, teacher.rows(begin, end).div_(temperature).log_softmax(1))
    return logs.sub_(math.log(len(teachers))) if others else logs


class _LinearDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wanted: tuple[LinearScores, ...],
        temperature: float,
    ) -> Tensor:
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        shared = min(len(weight), *(len(each.weight) for each in wanted))
        own, *teachers = (each.first_words(shared).to(dtype) for each in (LinearScores(states, weight, bias), *wanted))
        needs = context.needs_input_grad[:3]
        tensors = zip((states, weight, bias), needs, strict=True)
        grads = [torch.zeros_like(part, dtype=torch.float32) if need else None for part, need in tensors]  # type: ignore[arg-type]
        total = torch.zeros((), device=states.device)
        with torch.autocast(device, enabled=False):
            for begin, end in pieces(len(states), shared, DIVERGENCE_PIECE_BYTES):
                logs = own.rows(begin, end).div_(temperature).log_softmax(1)
                wanted_logs = _mean_logs(teachers, begin, end, temperature)
                shares = wanted_logs.exp()
                total += (shares * (wanted_logs - logs)).sum() * temperature**2
                errors = logs.exp_().sub_(shares).mul_(temperature)
                if grads[0] is not None:
                    grads[0][begin:end] = product(errors, own.weight)
                if grads[1] is not None:
                    grads[1][:shared] += product(errors.T, own.states[begin:end])
                if grads[2] is not None:
                    grads[2][:shared] += errors.sum(0)
        context.save_for_backward(*grads)
        context.dtypes = [None if part is None else part.dtype for part in (states, weight, bias)]
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = zip(context.saved_tensors, context.dtypes, strict=True)
        own = [None if part is None else part.mul_(gradient).to(dtype) for part, dtype in saved]
        return *own, None, None

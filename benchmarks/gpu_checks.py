"""Checks on a GPU that attention over packed documents gives the same results as attention over each document.

Both implementations are checked, `flash` and `buckets`. Another check is that dropout drops attention weights with the
configured probability, and that the backward pass drops the same weights as the forward pass.
"""

import json
import sys
from itertools import product
from typing import Any

from benchmarks.common import machine, parser_of

MOST = 0.02
"""Largest relative difference that passes a check. Rounding to bf16 explains differences of this size."""


def main() -> None:
    """Prints one line per check. Exits with code 1 if a check fails."""
    import torch

    arguments = parser_of("gpu_checks", __doc__).parse_args()
    found: dict[str, float] = {}
    if not torch.cuda.is_available():
        print("no GPU here: nothing checked")
    else:
        windows = (16,) if arguments.quick else (None, 16)
        for causal, window, heads, buckets in product((False, True), windows, (8, 2), (False, True)):
            off = _difference(causal, window, heads, buckets)
            found[f"causal={causal} window={window} key heads={heads} {'buckets' if buckets else 'flash'}"] = off
        for causal, heads in product((False, True), (8, 2)):
            found[f"dropout causal={causal} key heads={heads}"] = _dropout_difference(causal, heads)
        for name, off in found.items():
            print(f"{'FAILED' if off > MOST else 'ok'}: {name}: largest difference {off:.4f}")
    if arguments.json:
        values = {"name": "gpu_checks", "machine": machine(), "differences": found, "most": MOST}
        arguments.json.write_text(json.dumps(values, indent=1) + "\n")
    sys.exit(any(off > MOST for off in found.values()))


def _difference(causal: bool, window: int | None, key_heads: int, buckets: bool) -> float:
    """Returns the largest relative difference between packed attention in bf16 and separate attention in fp64.

    Outputs and gradients are compared.
    """
    import torch

    from adapt.model.packing import attention, flash
    from adapt.model.packing.packed import Documents

    torch.manual_seed(0)
    lengths = [5, 1, 64, 130, 300, 12]
    where = Documents(torch.tensor([0, *lengths]).cumsum(0).int(), max(lengths), torch.device("cuda"))
    shapes = [(1, heads, sum(lengths), 64) for heads in (8, key_heads, key_heads)]
    states = [torch.randn(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True) for shape in shapes]
    upstream = torch.randn(1, sum(lengths), 8, 64, dtype=torch.bfloat16, device="cuda")
    attend: Any = attention.attend_by_bucket if buckets else flash.flash_attention
    rows = [state[0].transpose(0, 1) for state in states]
    found = attend(*rows, where, None, 0.0, causal, window)[None]
    gradients = torch.autograd.grad(found, states, upstream)
    exact = [state.detach().double().requires_grad_() for state in states]
    pieces: Any = zip(*(state[0].split(lengths, 1) for state in exact), strict=True)
    expected = torch.cat([_reference(query, key, value, causal, window) for query, key, value in pieces], 1).transpose(
        0, 1
    )[None]
    wanted = torch.autograd.grad(expected, exact, upstream.double())
    pairs = [(found, expected), *zip(gradients, wanted, strict=True)]
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def _dropout_difference(causal: bool, key_heads: int) -> float:
    """Returns the largest relative difference between attention with dropout and an fp64 reference.

    A first call with one-hot values outputs the attention weights, which shows the dropped weights. A second call with
    the same seed drops the same weights, and computes the attention that is compared.
    """
    import torch

    from adapt.model.packing import flash
    from adapt.model.packing.packed import Documents

    rate, lengths, width = 0.1, [64] * 64, 64
    where = Documents(torch.tensor([0, *lengths]).cumsum(0).int(), max(lengths), torch.device("cuda"))
    states = [
        torch.randn(sum(lengths), heads, width, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for heads in (8, key_heads, key_heads)
    ]
    upstream = torch.randn(sum(lengths), 8, width, dtype=torch.bfloat16, device="cuda")

    def attended(value: Any) -> Any:
        torch.manual_seed(0)
        return flash.flash_attention(states[0], states[1], value, where, None, rate, causal, None)

    with torch.no_grad():
        hot = torch.eye(width, dtype=torch.bfloat16, device="cuda").repeat(len(lengths), 1)
        weights = attended(hot[:, None].expand(-1, key_heads, -1))
    kept = (weights != 0).unflatten(0, (len(lengths), -1)).transpose(1, 2)  # [documents, heads, queries, keys]
    found = attended(states[2])
    exact = [state.detach().double().requires_grad_() for state in states]
    query, key, value = (state.unflatten(0, (len(lengths), -1)).transpose(1, 2) for state in exact)
    key, value = (state.repeat_interleave(8 // key_heads, 1) for state in (key, value))
    scores = query @ key.mT / width**0.5
    seen = torch.ones(width, width, dtype=torch.bool, device="cuda")
    seen = seen.tril() if causal else seen
    dropped = scores.masked_fill(~seen, -torch.inf).softmax(-1) * kept / (1 - rate)
    expected = (dropped @ value).transpose(1, 2).flatten(0, 1)
    gradients = torch.autograd.grad(found, states, upstream)
    wanted = torch.autograd.grad(expected, exact, upstream.double())
    share = 1 - float(kept[..., seen].double().mean())
    error = (rate * (1 - rate) / kept[..., seen].numel()) ** 0.5
    if abs(share - rate) > 5 * error:
        return abs(share - rate) / rate
    pairs = [(found, expected), *zip(gradients, wanted, strict=True)]
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def _reference(query: Any, key: Any, value: Any, causal: bool, window: int | None) -> Any:
    import torch

    groups = len(query) // len(key)
    key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    places = torch.arange(query.shape[1], device=query.device)
    apart = places[:, None] - places
    hidden = (apart < 0) if causal else torch.zeros_like(apart, dtype=torch.bool)
    if window is not None:
        hidden = hidden | (apart.abs() >= window)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


if __name__ == "__main__":
    main()

"""Measures how many times more tokens training from scratch needs to reach the loss of a grown model (ELLE).

A small model grows by a layer and a head and learns a domain (PubMed). Then models of the same architecture with random
weights learn the same text, each with its own learning-rate decay, at the best of four peak rates. Their training
length doubles until one of them reaches the grown model's loss on held-out rows. `tokens_ratio` is the number of tokens
after which training from scratch reaches this loss (interpolated between lengths on a log scale), divided by the number
of tokens that the grown model was trained on. If no length reaches the loss, the figure is the longest length (a lower
bound), and the details say so. Tokens of the small model's earlier training are not counted. No time is measured, so
other load cannot matter.
"""

import math
from dataclasses import replace
from typing import Any

from benchmarks.common import Options, Result, parser_of, report

TARGETS = {"tokens_ratio": (">=", 1.0)}
TEXT, SEED = "first", 0
RATES = (1.0, 2.0, 4.0, 8.0)
"""Factors by which the learning rate is multiplied when models are trained from scratch."""


def measure(options: Options) -> Result:
    """Measures the grown model and the models trained from scratch, in this process."""
    assert options.data
    assert options.models
    from benchmarks.ours import alone
    from benchmarks.two_domains import LENGTH, STEP_ROWS, Domains

    alone()
    steps, most = (5, 40) if options.quick else (60, 480)
    domains = Domains.read(options.data, options.models / "bert-tiny-general", most, SEED)
    before, goal, architecture = _grown(domains, steps)
    rate = min(RATES, key=lambda share: _from_scratch(domains, architecture, 2 * steps, share))
    lengths = [steps * 2**doubled for doubled in range(1, 12) if steps * 2**doubled <= most]
    reached: list[tuple[int, float]] = []
    for length in lengths:
        reached.append((length, _from_scratch(domains, architecture, length, rate)))
        if reached[-1][1] <= goal:
            break
    tokens = STEP_ROWS * LENGTH
    is_there = reached[-1][1] <= goal
    needed = _between(reached[-2:], goal) if is_there else reached[-1][0]
    told = [(f"from scratch, {length * tokens:,} tokens", f"{loss:.3f}") for length, loss in reached]
    return Result(
        {"tokens_ratio": needed / steps},
        [
            ("the small model, before", f"{before:.3f}"),
            (f"grown, {steps * tokens:,} tokens", f"{goal:.3f}"),
            ("learning rate from scratch", f"{rate:g} times"),
            *told,
            ("the loss was reached", "yes" if is_there else "no: the ratio is a lower bound"),
        ],
    )


def _grown(domains: Any, steps: int) -> tuple[float, float, Any]:
    """Returns the loss before growing, the loss of the grown model, and the grown model's configuration."""
    from adapt.method.base import Setting
    from adapt.method.elle.method import Elle, ElleOptions

    small = domains.model()
    before = domains.loss(small, TEXT)
    method = Elle(ElleOptions(layers=[1], heads=[1], prompt_length=0))
    model = method.prepare_model(small, Setting(seed=SEED, number=1))
    method.resize(model.config)
    _trained(domains, model, steps, 1.0)
    return before, domains.loss(model, TEXT), model.config


def _from_scratch(domains: Any, architecture: Any, steps: int, rate: float) -> float:
    import torch
    from transformers import AutoModelForMaskedLM

    from adapt.model.packing.isolation import keep_documents_apart

    torch.manual_seed(SEED)
    model = AutoModelForMaskedLM.from_config(architecture).eval()
    keep_documents_apart(model)
    _trained(domains, model, steps, rate)
    return float(domains.loss(model, TEXT))


def _trained(domains: Any, model: Any, steps: int, rate: float) -> None:
    from adapt.method.base import Method

    training = replace(domains.training, max_steps=steps)
    replace(domains, training=training).train(model, TEXT, Method(), SEED, rate)


def _between(ends: list[tuple[int, float]], goal: float) -> float:
    """Interpolates, on a log scale, the training length at which the loss falls to `goal`.

    If `ends` contains only one length, returns this length.
    """
    if len(ends) == 1:
        return ends[0][0]
    (short, high), (long, low) = ends
    share = (high - goal) / (high - low)
    return short * math.exp(share * math.log(long / short))


def main() -> None:
    """Measures the ratio of tokens, prints the table and writes the JSON."""
    arguments = parser_of("growth", __doc__, needs_folders=True).parse_args()
    result = measure(Options(arguments.quick, arguments.data, arguments.models))
    report("growth", TARGETS, result, arguments.json)


if __name__ == "__main__":
    main()

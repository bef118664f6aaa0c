"""The README.md of an exported model: what it is, how to load it, what the adaptation changed, how to make it again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapt.evaluate.results import NOT_MEASURED, Estimate, LossChange
from adapt.model.card import front_matter, loading_code, settings, table

CARD = """\
---
{front}
---

# {name}

{base_model} adapted to a domain by {objective}. {verdict}

## What it was adapted on

{corpus}

## How to load it

{loading}

## Results

{results}

## Training settings

{training}

## Lineage

Every stage has a key, a hash of what determines its result. The same key means the same result.

{lineage}

## Package versions

{packages}
"""

OBJECTIVES = {
    "mlm": "masked language modelling",
    "whole_word": "masked language modelling of whole words",
    "entity": "masked language modelling of entities and whole words",
    "span": "masked language modelling of spans",
    "causal": "causal language modelling",
}

RESULTS_NOTE = (
    "Loss on held-out text, in nats a predicted token, and perplexity, its exponential; lower is better. "
    "In brackets the 95% interval. Nats a byte of text compare with models that have other tokens."
)


@dataclass(frozen=True)
class CardFacts:
    """What a card says."""

    name: str
    base_model: str
    objective: str
    """The kind of objective."""
    corpus: Mapping[str, Any]
    """Where the text came from, its size and digest."""
    training: Mapping[str, Any]
    """Settings, and what the training took."""
    results: Sequence[LossChange]
    lineage: Sequence[tuple[str, str, str]]
    """Kind, key and folder of the stages that it was made by."""
    packages: Mapping[str, str]
    """Name -> version."""
    additions: Sequence[str] = ()
    """Kinds of what the model carries beside its architecture."""
    remarks: Sequence[str] = ()
    """What a user should know of the text that the model was trained on."""
    domains: Sequence[str] = ()
    """Names of the domains that it has parts for, in the order learnt."""


def model_card(facts: CardFacts) -> str:
    """Write the card.

    Returns:
        Markdown with a YAML head as the Hugging Face Hub reads it. It names no licence: that depends on the base model
        and on the text, and is for the owner to say.
    """
    causal = facts.objective == "causal"
    return CARD.format(
        front=front_matter(facts.base_model, "text-generation" if causal else "fill-mask"),
        loading=loading_code(causal, facts.additions, facts.domains),
        name=facts.name,
        base_model=f"`{facts.base_model}`",
        objective=OBJECTIVES.get(facts.objective, facts.objective),
        verdict=card_verdict(facts.results),
        corpus="\n\n".join([settings(facts.corpus), *(f"**Note:** {remark}." for remark in facts.remarks)]),
        results=results_table(facts.results),
        training=settings(facts.training),
        lineage=table(("stage", "key", "path"), facts.lineage),
        packages=settings(facts.packages),
    )


def card_verdict(results: Sequence[LossChange]) -> str:
    """One sentence on what was gained and what was forgotten, no stronger than the intervals allow."""
    if not results:
        return f"Its effect was not measured: {NOT_MEASURED}."
    sentence = " and ".join(part(row) for row in results)
    return f"{sentence[0].upper()}{sentence[1:]}."


def part(row: LossChange) -> str:
    """What happened on one kind of text."""
    value, low, high = row.change.value, row.change.low, row.change.high
    if low is None or high is None:
        return f"on {row.text} text the held-out loss changed by {value:+.3f}, on too few documents for an interval"
    if low <= 0 <= high:
        return (
            f"on {row.text} text the held-out loss did not change measurably "
            f"({value:+.3f}, 95% interval {low:+.3f} to {high:+.3f})"
        )
    direction = "fell" if high < 0 else "rose"
    sizes = sorted((abs(low), abs(high)))
    return (
        f"on {row.text} text the held-out loss {direction} by {abs(value):.3f} "
        f"(95% interval {sizes[0]:.3f} to {sizes[1]:.3f})"
    )


def results_table(results: Sequence[LossChange]) -> str:
    """Loss and perplexity before and after, a row for each kind of text; losses per byte where they are known."""
    if not results:
        return f"Not measured: {NOT_MEASURED}."
    has_domain = any(row.text == "domain" for row in results)
    missing = "" if has_domain else f"\n\nThe domain is not among them: {NOT_MEASURED}."
    losses = ("loss before", "loss after", "change", "perplexity before", "perplexity after")
    are_sized = any(row.per_byte_before is not None for row in results)
    header = ("text", "predictions", *losses, *(("per byte before", "per byte after") if are_sized else ()))
    rows = [
        (
            row.text,
            row.predictions,
            row.before.text(".3f"),
            row.after.text(".3f"),
            row.change.text("+.3f"),
            perplexity(row.before),
            perplexity(row.after),
            *(_per_byte(row) if are_sized else ()),
        )
        for row in results
    ]
    return f"{RESULTS_NOTE}\n\n{table(header, rows)}{missing}"


def _per_byte(row: LossChange) -> list[str]:
    """Nats per byte of text before and after."""
    return ["" if value is None else f"{value:.4f}" for value in (row.per_byte_before, row.per_byte_after)]


def perplexity(loss: Estimate) -> str:
    """A perplexity with its interval: the exponential keeps the order, so the ends of the interval carry over."""
    ends = [None if end is None else math.exp(end) for end in (loss.low, loss.high)]
    return Estimate(math.exp(loss.value), *ends).text(".2f")

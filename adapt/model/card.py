"""The README.md of an exported model: what it is, how to load it, what the adaptation changed, how to make it again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""The Hub refuses a card whose base_model is anything but an id, so a folder is named in the text only."""

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

LOADING = """\
```python
from transformers import {auto_class}, AutoTokenizer

folder = "."  # the folder of this file
model = {auto_class}.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
```"""

LOADING_ADDITIONS = """\
The model carries {additions} beside its architecture. dontstop attaches them; transformers alone would leave them out.

```python
from pathlib import Path

from adapt.model.load import load_model
from transformers import AutoTokenizer

folder = "."  # the folder of this file
model = load_model(Path(folder), causal={causal}{chosen})
tokenizer = AutoTokenizer.from_pretrained(folder)
```"""

PARTED = """
It has parts for each of these domains: {names}. `domain` names the one whose parts are used; without it these are of
the one learnt last. `adapt.model.additions.route` tells which domain a text is nearest to.

"""

OBJECTIVES = {
    "mlm": "masked language modelling",
    "whole_word": "masked language modelling of whole words",
    "entity": "masked language modelling of entities and whole words",
    "span": "masked language modelling of spans",
    "causal": "causal language modelling",
}

NOT_MEASURED = "fewer than two documents are held out (`corpus.heldout_fraction`; of TAPT, the text of dev)"
"""Why a loss on the domain is missing."""
RESULTS_NOTE = (
    "Loss on held-out text, in nats a predicted token, and perplexity, its exponential; lower is better. "
    "In brackets the 95% interval. Nats a byte of text compare with models that have other tokens."
)


@dataclass(frozen=True)
class LossChange:
    """Loss on held-out text before and after, on the same documents and masks; None stands for ends of too few."""

    text: str
    """`domain` or `general`."""
    predictions: int
    before: float
    before_low: float | None
    before_high: float | None
    after: float
    after_low: float | None
    after_high: float | None
    change: float
    """after - before, paired by document."""
    change_low: float | None
    change_high: float | None
    per_byte_before: float | None = None
    """Nats a byte of text; None where the length of texts is not known."""
    per_byte_after: float | None = None


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
        corpus=settings(facts.corpus),
        results=results_table(facts.results),
        training=settings(facts.training),
        lineage=table(("stage", "key", "path"), facts.lineage),
        packages=settings(facts.packages),
    )


def loading_code(causal: bool, additions: Sequence[str], domains: Sequence[str] = ()) -> str:
    """How to load the model in Python."""
    if additions:
        chosen = f", domain={domains[-1]!r}" if domains else ""
        code = LOADING_ADDITIONS.format(additions=", ".join(additions), causal=causal, chosen=chosen)
        return code.replace("\n\n", PARTED.format(names=", ".join(domains)), 1) if domains else code
    return LOADING.format(auto_class="AutoModelForCausalLM" if causal else "AutoModelForMaskedLM")


def front_matter(base_model: str, task: str) -> str:
    """The lines between the dashes; the task is a pipeline tag of the Hub."""
    base = [f"base_model: {json.dumps(base_model)}"] if HUB_ID.fullmatch(base_model) else []
    tags = [f"- {tag}" for tag in (task, "domain-adaptation", "dontstop")]
    return "\n".join([*base, "library_name: transformers", f"pipeline_tag: {task}", "tags:", *tags])


def card_verdict(results: Sequence[LossChange]) -> str:
    """One sentence on what was gained and what was forgotten, no stronger than the intervals allow."""
    if not results:
        return f"Its effect was not measured: {NOT_MEASURED}."
    sentence = " and ".join(part(row) for row in results)
    return f"{sentence[0].upper()}{sentence[1:]}."


def part(row: LossChange) -> str:
    """What happened on one kind of text."""
    low, high = row.change_low, row.change_high
    if low is None or high is None:
        return (
            f"on {row.text} text the held-out loss changed by {row.change:+.3f}, of too few documents to tell it "
            "from chance"
        )
    if low <= 0 <= high:
        return (
            f"on {row.text} text the held-out loss did not change measurably "
            f"({row.change:+.3f}, 95% interval {low:+.3f} to {high:+.3f})"
        )
    direction = "fell" if high < 0 else "rose"
    sizes = sorted((abs(low), abs(high)))
    return (
        f"on {row.text} text the held-out loss {direction} by {abs(row.change):.3f} "
        f"(95% interval {sizes[0]:.3f} to {sizes[1]:.3f})"
    )


def results_table(results: Sequence[LossChange]) -> str:
    """Loss and perplexity before and after, a row for each kind of text; losses a byte where they are known."""
    if not results:
        return f"Not measured: {NOT_MEASURED}."
    has_domain = any(row.text == "domain" for row in results)
    missing = "" if has_domain else f"\n\nThe domain is not among them: {NOT_MEASURED}."
    losses = ("loss before", "loss after", "change", "perplexity before", "perplexity after")
    are_sized = any(row.per_byte_before is not None for row in results)
    header = ("text", "predictions", *losses, *(("a byte before", "a byte after") if are_sized else ()))
    rows = [
        (
            row.text,
            row.predictions,
            interval(row, "before"),
            interval(row, "after"),
            interval(row, "change", signed=True),
            perplexity(row, "before"),
            perplexity(row, "after"),
            *(_per_byte(row) if are_sized else ()),
        )
        for row in results
    ]
    return f"{RESULTS_NOTE}\n\n{table(header, rows)}{missing}"


def _per_byte(row: LossChange) -> list[str]:
    """Nats a byte of text before and after."""
    return ["" if value is None else f"{value:.4f}" for value in (row.per_byte_before, row.per_byte_after)]


def interval(row: LossChange, name: str, signed: bool = False) -> str:
    """A loss with its interval."""
    form = "+.3f" if signed else ".3f"
    value, low, high = _estimate(row, name)
    return f"{value:{form}}" + ("" if low is None or high is None else f" ({low:{form}} to {high:{form}})")


def perplexity(row: LossChange, name: str) -> str:
    """A perplexity with its interval: the exponential keeps the order, so the ends of the interval carry over."""
    value, low, high = _estimate(row, name)
    ends = "" if low is None or high is None else f" ({math.exp(low):.2f} to {math.exp(high):.2f})"
    return f"{math.exp(value):.2f}{ends}"


def _estimate(row: LossChange, name: str) -> tuple[float, float | None, float | None]:
    """`before`, `after` or `change`, and its interval."""
    return getattr(row, name), getattr(row, f"{name}_low"), getattr(row, f"{name}_high")


def settings(values: Mapping[str, Any]) -> str:
    """Names and values as a table."""
    return table(("name", "value"), list(values.items()))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    """A value in a table: large whole numbers in groups of three digits, and nothing that would end the cell."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")

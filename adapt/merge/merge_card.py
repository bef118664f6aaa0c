"""The README.md of a merged model: what it was made of, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapt.model.card import front_matter, settings, table

CARD = """\
---
{front}
---

# {name}

Made of {base_model} and {models} without training: `{kind}`, share {share:g}.

## How it was made

{made}

{rule}

## Models

{sources}

## How to load it

```python
from transformers import {auto_class}, AutoTokenizer

folder = "."  # the folder of this file
model = {auto_class}.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
```

It has not been measured. Weights were merged in fp32 and are stored in the types of the base.
"""


@dataclass(frozen=True)
class MergeFacts:
    """What the card of a merged model says."""

    name: str
    base_model: str
    kind: str
    rule: str
    """The formula, in words."""
    share: float
    settings: Mapping[str, Any]
    sources: Sequence[tuple[str, str, str, str]]
    """The base and each model: role, what the configuration calls it, digest or key, and weight."""
    causal: bool


def merge_card(facts: MergeFacts) -> str:
    """Writes the card: Markdown with a YAML head, as `adapt.evaluate.card.model_card`."""
    number = len(facts.sources) - 1
    return CARD.format(
        front=front_matter(facts.base_model, "text-generation" if facts.causal else "fill-mask"),
        auto_class="AutoModelForCausalLM" if facts.causal else "AutoModelForMaskedLM",
        name=facts.name,
        base_model=f"`{facts.base_model}`",
        models=f"{number} model{'' if number == 1 else 's'}",
        kind=facts.kind,
        share=facts.share,
        made=settings(facts.settings),
        rule=facts.rule,
        sources=table(("role", "model", "digest or key", "weight"), facts.sources),
    )

"""The README.md of a model whose vocabulary was extended."""

from pathlib import Path

from adapt.model.additions.config import stored_additions
from adapt.model.card import front_matter, loading_code, settings
from adapt.runner.files import write_atomically
from adapt.vocabulary.results import Extended

CARD = """\
---
{front}
---

# {name}

{base_model} with {words:,} words of a domain as tokens. It has not been trained since.

## What was changed

{facts}

The tokenizer was built anew: ids that there were keep their meaning, texts without a new token have the
tokens of before, and the new ids come after the old ones. `words.json` lists them.

First of them: {first}.

## How to load it

{loading}
"""


def write_extension_card(folder: Path, name: str, base_model: str, extended: Extended, causal: bool) -> None:
    """Writes the card.

    Args:
        folder: of the model.
        name: of the job.
        base_model: what the configuration calls the model that was extended.
        extended: what became of the vocabulary.
        causal: it predicts next tokens.
    """
    additions = [entry["kind"] for entry in stored_additions(folder)]
    facts = {
        "new tokens": extended.words + extended.steps,
        "tokens": extended.vocabulary,
        "rows of the embeddings": extended.rows,
        "pieces a word of the corpus, before": round(extended.fertility_before, 3),
        "pieces a word of the corpus, now": round(extended.fertility_after, 3),
        "new rows": extended.init,
        **({"beside the architecture": ", ".join(additions)} if additions else {}),
    }
    card = CARD.format(
        front=front_matter(base_model, "text-generation" if causal else "fill-mask"),
        loading=loading_code(causal, additions),
        name=name,
        base_model=f"`{base_model}`",
        words=extended.words,
        facts=settings(facts),
        first=", ".join(extended.first),
    )
    write_atomically(folder / "README.md", card)

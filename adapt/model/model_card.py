"""Writes parts of the README.md (model card) of a model: its front matter, how to load it, and tables of settings."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapt.model.sentence_vectors import SentenceVectors

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""Pattern of Hugging Face ids. Cards name no folder as base_model, because the Hub only accepts an id there."""


def is_hub_id(name: str) -> bool:
    """Returns whether a name is an id of the Hub. A name that is also a local path is no id, as in transformers."""
    return bool(HUB_ID.fullmatch(name)) and not Path(name).exists()


LOADING = """\
```python
from transformers import {auto_class}, AutoTokenizer

folder = "."  # the folder of this file
model = {auto_class}.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
```"""

LOADING_DETECTOR = """\
The weights are those of the discriminator, to be fine-tuned like any encoder. The folder `generator` has its generator.
To continue training both with dontstop, set `model.path` to this folder and `objective.kind` to `rtd`.

```python
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

folder = "."  # the folder of this file
model = AutoModel.from_pretrained(folder)
generator = AutoModelForMaskedLM.from_pretrained(f"{folder}/generator")
tokenizer = AutoTokenizer.from_pretrained(folder)
```"""
LOADING_TURNED = """\
The model is a decoder with bidirectional attention. transformers 5 reads this from `is_causal: false` in config.json;
earlier versions ignore it. For one vector per text, average the hidden states. Each position predicts the next token.

""" + LOADING.format(auto_class="AutoModel")
LOADING_ADDITIONS = """\
The model carries {additions} in addition to its architecture. dontstop loads these parts; transformers ignores them.

```python
from pathlib import Path

from adapt.model.load import load_model
from transformers import AutoTokenizer

folder = "."  # the folder of this file
model = load_model(Path(folder), causal={causal}{chosen})
tokenizer = AutoTokenizer.from_pretrained(folder)
```"""

PARTED = """
It has parts for each of these domains: {names}. The argument `domain` selects a domain; the default is the one learnt
last. `adapt.model.additions.domain_modules` finds the domain that a text is nearest to.

"""


LOADING_VECTORS = """\
Sentence vectors with sentence-transformers ({pooling} pooling{scaled}):

```python
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer(".").encode(["a sentence", "another sentence"])  # . is the folder of this file
```

The {model} with transformers:

"""


def loading_code(
    causal: bool,
    additions: Sequence[str] = (),
    domains: Sequence[str] = (),
    vectors: SentenceVectors | None = None,
    has_head: bool = True,
) -> str:
    """Returns the section of the card that shows how to load the model in Python."""
    if vectors:
        scaled = ", scaled to length 1" if vectors.normalize else ""
        model = "language model" if has_head else "model, which has no language-model head,"
        before = LOADING_VECTORS.format(pooling=vectors.pooling, scaled=scaled, model=model)
        return before + loading_code(causal, additions, domains, has_head=has_head)
    if additions:
        chosen = f", domain={domains[-1]!r}" if domains else ""
        shown = LOADING_ADDITIONS.format(additions=", ".join(additions), causal=causal, chosen=chosen)
        return shown.replace("\n\n", PARTED.format(names=", ".join(map(card_text, domains))), 1) if domains else shown
    head = "AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"
    return LOADING.format(auto_class=head if has_head else "AutoModel")


def front_matter(base_model: str, task: str, library: str = "transformers") -> str:
    """Returns the YAML metadata of a card, which is between two lines of dashes.

    Args:
        base_model: id or folder of the model that was trained further. A folder is left out.
        task: a pipeline tag of the Hub.
        library: name of the library that loads the model, as the Hub spells it.
    """
    base = [f"base_model: {json.dumps(base_model)}"] if is_hub_id(base_model) else []
    tags = [f"- {tag}" for tag in (task, "domain-adaptation", "dontstop")]
    return "\n".join([*base, f"library_name: {library}", f"pipeline_tag: {task}", "tags:", *tags])


def settings(values: Mapping[str, Any]) -> str:
    """Formats names and values as a Markdown table."""
    return table(("name", "value"), list(values.items()))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Formats rows as a Markdown table."""
    lines = [header, ["---"] * len(header), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    """Formats a value for a table cell: integers in groups of three digits, and texts as in `card_text`."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return card_text(text)


_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`<[]|"} | {"\n": " ", "\r": " "})


def card_text(text: str) -> str:
    """Escapes text from users, such as a name or words of a corpus, so that no part becomes HTML, a link or a table."""
    return text.translate(_MARKS)


def card_code(text: str) -> str:
    """Formats text from users as code on one line. Backticks, which would end the code, become apostrophes."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"

"""Parts of the README.md of any model that is written: its head, how to load it, tables of settings."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""The Hub refuses a card whose base_model is anything but an id, so a folder is named in the text only."""

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
the one learnt last. `adapt.model.additions.domain_modules` tells which domain a text is nearest to.

"""


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

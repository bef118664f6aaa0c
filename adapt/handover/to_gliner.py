"""Kind `gliner` of `export.kinds`: what GLiNER needs to learn to find entities with the adapted encoder.

GLiNER (arXiv 2311.08526) compares vectors of spans with vectors of the names of entity types. Its span layers are not
part of a language model and begin with random weights, so GLiNER must be trained before use. The folder gets GLiNER's
configuration and, if the task has labels of words, the train split in GLiNER's format. The encoder is that of the
exported folder, so no weights are copied.

Releases of the package gliner up to 0.2.29 require transformers below 5.17, so pip refuses it next to dontstop. Install
it in an environment of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from adapt.config import Config
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver, ModelKind
from adapt.model.architecture import max_sequence_length
from adapt.runner.files import make_folder, write_atomically
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from adapt.handover.labelled_text import LabelledText

SETTINGS, EXAMPLES = "gliner/gliner_config.json", "gliner/train.json"
LONGEST = 384
"""Default of GLiNER for the largest number of words per text."""


class ToGliner(ExportKind):
    """Trained by GLiNER."""

    learns = True

    def refuse(self, config: Config, model: Path) -> None:
        """Refuses decoders, whose first words do not see the following ones."""
        if config.objective.kind == "causal":
            raise ConfigError(
                f"export.kinds: GLiNER needs an encoder, and {ModelKind.of(model).model_type} is trained as a decoder",
                "remove gliner from export.kinds",
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Writes GLiNER's configuration and, if there is a task with labels of words, its train split."""
        labelled, folder = exported.labelled, exported.folder
        longest = min(LONGEST, max_sequence_length(folder) or LONGEST)
        settings = {"model_type": "gliner", "model_name": ".", "name": exported.config.name, "max_len": longest}
        make_folder((folder / SETTINGS).parent)
        write_atomically(folder / SETTINGS, json.dumps(settings, indent=2))
        has_entities = labelled is not None and labelled.kind == "tokens"
        if labelled and has_entities:
            write_atomically(folder / EXAMPLES, json.dumps(gliner_examples(labelled)))
        files = [SETTINGS, *([EXAMPLES] if has_entities else [])]
        return HandedOver("gliner", files, note="The span layers are not trained.")

    def example(self, exported: ExportedModel) -> str:
        """Returns code that trains GLiNER and finds entities."""
        has_entities = exported.labelled is not None and exported.labelled.kind == "tokens"
        data = (
            f'json.load(open("{EXAMPLES}"))'
            if has_entities
            else '[{"tokenized_text": ["Mary", "left"], "ner": [[0, 0, "person"]]}]'
        )
        return f"""\
Entities with GLiNER (`pip install gliner` in an environment of its own; its span layers must be trained first):

```python
import json

from gliner import GLiNER

model = GLiNER.from_config("{SETTINGS}", backbone_from_pretrained=True)  # run in the folder of this file
examples = {data}
model.train_model(examples, examples[:100], output_dir="gliner/trained", max_steps=1000, bf16=False)
print(model.predict_entities("Mary left", ["person"]))
```"""


def gliner_examples(labelled: LabelledText) -> list[dict[str, object]]:
    """Returns labelled words in the format of GLiNER's training data: words, and first word, last word and type."""
    return [
        {"tokenized_text": [*words], "ner": [[*entity] for entity in entities]}
        for words, entities in zip(labelled.words, labelled.entities(), strict=True)
    ]

"""Defines the kinds of exports (`export.kinds`) that learn the user's task: SetFit and GLiNER.

SetFit (arXiv 2209.11055) is a model for sentence vectors with a classification head. If a task is configured, the head
is a logistic regression on the vectors of the task's train split. Without a task, there is no head, but users can train
one from the folder with SetFit, which also trains the encoder. SetFit stores a head as a pickle of scikit-learn,
and loading a pickle can run code: load only folders that you trust. dontstop never reads this file.

GLiNER (arXiv 2311.08526) compares vectors of spans with vectors of the names of entity types. Its span layers are not
part of a language model and begin with random weights, so GLiNER must be trained before use. The folder gets GLiNER's
configuration and, if the task has word-level labels, the train split in GLiNER's format. GLiNER loads the encoder from
the exported folder, so no weights are copied.

The package gliner 0.2.29 requires transformers below 5.17, so pip cannot install it next to dontstop. Its code works
with dontstop's version of transformers, as the tests show: install it with `--no-deps`, or in a separate environment.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adapt.config import Config, TaskConfig
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver, model_type, pooling_files
from adapt.model.architecture import max_sequence_length
from adapt.runner.files import file_aside, make_folder, write_atomically
from adapt.support.errors import ConfigError, DataError
from adapt.task.labelled_examples import Example, check_split
from adapt.task.labels import check_train_labels

SETFIT, HEAD = "config_setfit.json", "model_head.pkl"
"""Names of the files with SetFit's settings and with the classification head."""
GLINER, EXAMPLES = "gliner/gliner_config.json", "gliner/train.json"
"""Names of the files with GLiNER's settings and with its training data."""
TRAINED_GLINER = "gliner/trained"
"""Folder into which the example in the card writes the trained GLiNER and its checkpoints."""
LONGEST = 384
"""GLiNER's default for the maximum number of words per text."""
Entity = tuple[int, int, str]
"""First word, last word, and type of an entity."""


@dataclass(frozen=True)
class LabelledText:
    """The train split of a task."""

    kind: str
    """Kind of the task, such as `single_label`."""
    texts: Sequence[str]
    words: Sequence[Sequence[str]]
    """Words of each text, for tasks of kind `tokens`. Empty lists for other kinds."""
    labels: Sequence[Sequence[str]]
    """Labels of each text: one for `single_label`, any number for `multi_label`, and one per word for `tokens`."""

    @property
    def classes(self) -> list[str]:
        """The sorted labels that occur in the split."""
        return sorted({label for labels in self.labels for label in labels})

    def entities(self) -> list[list[Entity]]:
        """Returns the entities of each text, for tasks of kind `tokens`."""
        return [entities_of(labels) for labels in self.labels]


def read_labelled(task: TaskConfig) -> LabelledText:
    """Reads the train split of a task."""
    examples = check_split(task, "train").examples
    return LabelledText(
        task.kind,
        [example.text for example in examples],
        [example.words for example in examples],
        [[str(label) for label in example.labels] for example in examples],
    )


def entities_of(labels: Sequence[str]) -> list[Entity]:
    """Returns the entities in a sequence of labels of the form B-X, I-X and O.

    A label I-X that does not continue an entity of type X begins a new entity, as in CoNLL's evaluation.
    """
    found: list[Entity] = []
    for place, label in enumerate(labels):
        mark, _, kind = label.partition("-")
        if mark not in ("B", "I"):
            continue
        if mark == "I" and found and found[-1][1:] == (place - 1, kind):
            found[-1] = (found[-1][0], place, kind)
        else:
            found.append((place, place, kind))
    return found


class ToSetFit(ExportKind):
    """Writes the files with which SetFit loads the folder."""

    needs_vectors = True
    learns = True
    packages = ("setfit",)
    extra = "setfit"

    def refuse(self, config: Config, model: Path) -> None:
        """Raises an error for tasks that SetFit's classifier cannot learn."""
        task = config.task
        if task.train and (task.kind == "tokens" or task.pair_field):
            what = "labels of words" if task.kind == "tokens" else "pairs of texts"
            raise ConfigError(
                f"export.kinds: SetFit classifies single texts, but the task {task.name} has {what}",
                "remove setfit from export.kinds, or remove the task"
                + ("; to find entities, use gliner" if "words" in what else ""),
            )

    def check_task(self, task: TaskConfig) -> list[Example]:
        """Checks that the train split has at least two classes, and no labels that can only be a mistake."""
        examples = super().check_task(task)
        if task.kind == "tokens" or task.pair_field:
            return examples  # `refuse` raises an error for this task
        learned = {str(label) for example in examples for label in example.labels}
        if len(learned) < 2:
            has = f"only one class, {learned.pop()}" if learned else "no label"
            raise DataError(
                f"the train split of the task {task.name} has {has}, so SetFit's head cannot learn from it",
                "add examples of another class to task.train, or remove setfit from export.kinds",
            )
        check_train_labels(task.kind, examples)
        return examples

    def write(self, exported: ExportedModel) -> HandedOver:
        """Writes SetFit's settings, and trains and writes the head if there is a task."""
        labelled, folder = exported.labelled, exported.folder
        settings = {"normalize_embeddings": False, "labels": labelled.classes if labelled else None}
        write_atomically(folder / SETFIT, json.dumps(settings, indent=2))
        files = [SETFIT, *([HEAD] if labelled else []), *pooling_files(exported)]
        if labelled is None:
            (folder / HEAD).unlink(missing_ok=True)
            return HandedOver("setfit", files, note="There is no classification head, because no task is configured.")
        write_head(trained_head(folder, labelled), folder / HEAD)
        return HandedOver(
            "setfit", files, note=f"The classification head was trained on {len(labelled.texts):,} examples."
        )

    def example(self, exported: ExportedModel) -> str:
        """Returns example code that classifies a text or, if there is no head, trains the classifier."""
        if exported.labelled:
            return """\
A classifier with SetFit (its head is a pickle file, and loading a pickle can run any code in it):

```python
from setfit import SetFitModel

print(SetFitModel.from_pretrained(".").predict(["a sentence"]))
```"""
        return """\
A classifier with SetFit, from a few examples per class:

```python
from datasets import Dataset
from setfit import SetFitModel, Trainer

examples = Dataset.from_dict({"text": ["good", "bad"], "label": [1, 0]})
trainer = Trainer(SetFitModel.from_pretrained("."), train_dataset=examples)
trainer.train()
trainer.model.save_pretrained("classifier")
```"""


def trained_head(folder: Path, labelled: LabelledText) -> Any:
    """Trains the head as SetFit does, by logistic regression. For `multi_label`, each label has its own regression.

    Returns:
        A classifier of scikit-learn, whose classes are the indices of the labels.
    """
    from sentence_transformers import SentenceTransformer
    from sklearn import linear_model, multiclass

    vectors = SentenceTransformer(str(folder), local_files_only=True).encode([*labelled.texts])
    index = {label: number for number, label in enumerate(labelled.classes)}
    head = linear_model.LogisticRegression(max_iter=1000)
    if labelled.kind == "single_label":
        return head.fit(vectors, [index[label] for (label,) in labelled.labels])
    targets = np.zeros((len(vectors), len(index)), dtype=int)
    for row, labels in enumerate(labelled.labels):
        targets[row, [index[label] for label in labels]] = 1
    return multiclass.OneVsRestClassifier(head).fit(vectors, targets)


def write_head(head: Any, file: Path) -> None:
    """Writes the head in SetFit's format."""
    import joblib

    with file_aside(file) as aside:
        joblib.dump(head, aside)


class ToGliner(ExportKind):
    """Writes the files with which GLiNER can be trained from the folder."""

    learns = True

    def refuse(self, config: Config, model: Path) -> None:
        """Raises an error for decoders, because their vector of a word does not depend on the following words."""
        if config.objective.kind == "causal":
            raise ConfigError(
                f"export.kinds: GLiNER needs an encoder, but {model_type(model)} is trained as a decoder",
                "remove gliner from export.kinds",
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Writes GLiNER's configuration and, if there is a task with word-level labels, its train split."""
        labelled, folder = exported.labelled, exported.folder
        longest = min(LONGEST, max_sequence_length(folder) or LONGEST)
        settings = {"model_type": "gliner", "model_name": ".", "name": exported.config.name, "max_len": longest}
        make_folder((folder / GLINER).parent)
        write_atomically(folder / GLINER, json.dumps(settings, indent=2))
        has_entities = labelled is not None and labelled.kind == "tokens"
        if labelled and has_entities:
            write_atomically(folder / EXAMPLES, json.dumps(gliner_examples(labelled)))
        files = [GLINER, *([EXAMPLES] if has_entities else [])]
        return HandedOver("gliner", files, note="The span layers are not trained.")

    def example(self, exported: ExportedModel) -> str:
        """Returns code that trains GLiNER and finds entities."""
        has_entities = exported.labelled is not None and exported.labelled.kind == "tokens"
        data = (
            f'json.load(open("{EXAMPLES}"))'
            if has_entities
            else '[{"tokenized_text": ["Mary", "left"], "ner": [[0, 0, "person"]]}]'
        )
        longest = max_sequence_length(exported.folder)
        limit = f"model.data_processor.transformer_tokenizer.model_max_length = {longest}  # truncates longer texts\n"
        return f"""\
Entities with GLiNER. Its span layers must be trained first. Install GLiNER in a separate environment with
`pip install 'gliner[training]'`, or next to dontstop with `pip install --no-deps gliner accelerate`:

```python
import json

from gliner import GLiNER

model = GLiNER.from_config("{GLINER}", backbone_from_pretrained=True)  # run in the folder of this file
{limit if longest else ""}examples = {data}
model.train_model(
    examples, None, output_dir="{TRAINED_GLINER}", max_steps=1000, bf16=False, dataloader_num_workers=0
)
model.save_pretrained("{TRAINED_GLINER}", safe_serialization=True)
print(GLiNER.from_pretrained("{TRAINED_GLINER}").predict_entities("Mary left", ["person"]))
```"""


def gliner_examples(labelled: LabelledText) -> list[dict[str, object]]:
    """Returns a split in GLiNER's format: the words of each text, and first word, last word and type of each entity."""
    return [
        {"tokenized_text": [*words], "ner": [[*entity] for entity in entities]}
        for words, entities in zip(labelled.words, labelled.entities(), strict=True)
    ]

"""Kind `setfit` of `export.kinds`: a classifier that SetFit loads from the exported folder.

SetFit (arXiv 2209.11055) is a model for sentence vectors with a head. With a task, the head is a logistic regression on
the vectors of the task's train split; without one, the folder is where SetFit's own training starts, which also trains
the encoder. SetFit stores a head as a pickle of scikit-learn, which its loader executes: load only folders that you
trust. dontstop never reads this file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adapt.config import Config
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver
from adapt.handover.to_sentence_transformers import pooling_files
from adapt.runner.files import file_aside, write_atomically
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from adapt.handover.labelled_text import LabelledText

SETTINGS, HEAD = "config_setfit.json", "model_head.pkl"


class ToSetFit(ExportKind):
    """Loads with SetFit."""

    needs_vectors = True
    learns = True
    packages = ("setfit",)
    extra = "setfit"

    def refuse(self, config: Config, model: Path) -> None:
        """Refuses tasks that SetFit's classifier cannot learn."""
        task = config.task
        if task.train and (task.kind == "tokens" or task.pair_field):
            what = "labels of words" if task.kind == "tokens" else "pairs of texts"
            raise ConfigError(
                f"export.kinds: SetFit classifies single texts, and the task {task.name} has {what}",
                "remove setfit from export.kinds, or the task" + ("; gliner finds entities" if "words" in what else ""),
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Writes the settings, and the head if there is a task."""
        labelled, folder = exported.labelled, exported.folder
        settings = {"normalize_embeddings": False, "labels": labelled.classes if labelled else None}
        write_atomically(folder / SETTINGS, json.dumps(settings, indent=2))
        files = [SETTINGS, *([HEAD] if labelled else []), *pooling_files(exported)]
        if labelled is None:
            (folder / HEAD).unlink(missing_ok=True)
            return HandedOver("setfit", files, note="There is no head, because no task is configured.")
        write_head(trained_head(folder, labelled), folder / HEAD)
        return HandedOver("setfit", files, note=f"The head was trained on {len(labelled.texts):,} examples.")

    def example(self, exported: ExportedModel) -> str:
        """Returns code that classifies a text, or trains the classifier if there is no head."""
        if exported.labelled:
            return """\
A classifier with SetFit (its head is a pickle, which loading executes):

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
    """Trains the head as SetFit does: a logistic regression on the vectors, one per label for `multi_label`.

    Returns:
        A classifier of scikit-learn, whose classes are the indices of the labels.
    """
    from sentence_transformers import SentenceTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    vectors = SentenceTransformer(str(folder), local_files_only=True).encode([*labelled.texts])
    index = {label: number for number, label in enumerate(labelled.classes)}
    if labelled.kind == "single_label":
        return LogisticRegression(max_iter=1000).fit(vectors, [index[label] for (label,) in labelled.labels])
    targets = np.zeros((len(vectors), len(index)), dtype=int)
    for row, labels in enumerate(labelled.labels):
        targets[row, [index[label] for label in labels]] = 1
    return OneVsRestClassifier(LogisticRegression(max_iter=1000)).fit(vectors, targets)


def write_head(head: Any, file: Path) -> None:
    """Writes the head in SetFit's format."""
    import joblib

    with file_aside(file) as aside:
        joblib.dump(head, aside)

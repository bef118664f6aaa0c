"""Quality of a model's features without training: do a text's nearest neighbours have its label?"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from adapt.config import Config, EvaluationConfig
from adapt.evaluate.mlm_loss import Heldout
from adapt.evaluate.ready import call_on_device, ready
from adapt.evaluate.results import TaskNeighbours
from adapt.model.locate import Pretrained
from adapt.model.packed import Packed, sent
from adapt.model.states import last_hidden_state
from adapt.task.data import Split


def nearest_neighbours(config: Config, pretrained: Pretrained, tasks: Mapping[str, Path]) -> dict[str, TaskNeighbours]:
    """Classifies each task's test texts by their neighbours in train, on the cluster this process is connected to.

    Args:
        config: `comparison.neighbours`, and how much text passes the model at once.
        pretrained: the model.
        tasks: folders of prepared tasks of kind single_label, by name.
    """
    return call_on_device(
        _all, config.resources, config, pretrained, {name: str(folder) for name, folder in tasks.items()}
    )


def _all(config: Config, pretrained: Pretrained, tasks: Mapping[str, str]) -> dict[str, TaskNeighbours]:
    loaded = ready(pretrained, config.objective.kind == "causal")
    by_task = {}
    for name, folder in tasks.items():
        train, test = (Split.load(Path(folder), split) for split in ("train", "test"))
        known, queries = (
            mean_features(loaded.model, split, config.evaluation, loaded.device) for split in (train, test)
        )
        clean = ~np.array(test.leaked, bool)
        labels, truth = np.array(train.labels), np.array(test.labels)[clean]
        accuracy = knn_accuracy(known, labels, queries[clean], truth, config.comparison.neighbours)
        by_task[name] = TaskNeighbours(accuracy, int(clean.sum()), int((~clean).sum()))
    return by_task


def mean_features(
    model: torch.nn.Module, split: Split, evaluation: EvaluationConfig, device: torch.device
) -> np.ndarray:
    """Mean of the last layer's states over all tokens of each text, special tokens too, float32 [examples, H].

    Texts longer than `evaluation.sequence_length` pass in pieces; the mean is over the tokens of all pieces.
    """
    texts = Heldout(list(range(len(split))), split.tokens, {"second": [ids.astype(bool) for ids in split.segments]})
    sums: np.ndarray | None = None
    with torch.inference_mode():
        for index, rows in texts.batches(evaluation.sequence_length, evaluation.micro_batch):
            packed = Packed.of(rows.tokens, rows.real, rows.starts).to(device)
            segments = sent(rows.marks["second"][rows.real].long()[None], device)
            states = last_hidden_state(model, packed, segments).float()
            owner = sent(torch.from_numpy(index)[rows.real.nonzero()[:, 0]], device)
            part = torch.zeros(len(split), states.shape[1], device=device).index_add(0, owner, states).cpu().numpy()
            sums = part if sums is None else sums + part
    if sums is None:
        return np.zeros((0, 0), np.float32)
    features: np.ndarray = sums / np.array([len(tokens) for tokens in split.tokens], np.float32)[:, None]
    return features


def knn_accuracy(
    known: np.ndarray, labels: np.ndarray, queries: np.ndarray, truth: np.ndarray, neighbours: int
) -> float | None:
    """Share of texts whose nearest neighbours by cosine vote for their label; each has one vote.

    Args:
        known: features of the texts whose labels vote [train, H].
        labels: theirs [train].
        queries: features of the texts to classify [test, H].
        truth: their labels [test].
        neighbours: voters; all known texts where there are fewer.
    """
    if not len(queries):
        return None
    classifier = KNeighborsClassifier(min(neighbours, len(known)), metric="cosine", algorithm="brute")
    return float(classifier.fit(known, labels).score(queries, truth))

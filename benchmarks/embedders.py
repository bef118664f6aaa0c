"""Embedders on 20 newsgroups: coherence of VAMPIRE's topics, and how well nearest neighbours know the group of a text.

`npmi`: the mean normalized pointwise mutual information of the ten first words of VAMPIRE's topics, counted on the
training texts. `accuracy_...`: share of test texts whose ten nearest train texts by cosine vote for their group.
VAMPIRE and TF-IDF learn from the train texts; the transformer is the smallest shared one. `--quick`: a thirtieth.
"""

import gzip
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Options, Result, apart, main
from benchmarks.texts import SMALL

TARGETS = {
    "npmi": (">=", 0.1),
    "accuracy_vampire": (">=", 0.4),
    "accuracy_tfidf": (">=", 0.4),
    "accuracy_static": (">=", 0.2),
    "accuracy_transformer": (">=", 0.2),
}
NEIGHBOURS = 10
QUICK_OPTIONS: dict[str, dict[str, Any]] = {"vampire": {"epochs": 3}}


def measure(options: Options) -> Result:
    """One embedder after another, each in a process of its own."""
    if not options.data or not options.models:
        raise SystemExit("this benchmark needs --data (tasks/newsgroups) and --models")
    figures: dict[str, float] = {}
    details = []
    for kind in ("vampire", "tfidf", "static", "transformer"):
        accuracy, learnt, seconds = apart(
            measured, kind, options.data, options.models / SMALL, 30 if options.quick else 1, options.quick
        )
        if "npmi" in learnt:
            figures["npmi"] = learnt["npmi"]
        figures[f"accuracy_{kind}"] = accuracy
        told = ", ".join(f"{name} {value:.4g}" for name, value in learnt.items())
        details.append((kind, f"{seconds[0]:.0f} s to learn, {seconds[1]:.0f} s to embed{'; ' if told else ''}{told}"))
    return Result(figures, details)


def measured(
    kind: str, data: Path, model: Path, every: int, quick: bool
) -> tuple[float, dict[str, float], tuple[float, float]]:
    """Accuracy, what was learnt, and the seconds to learn and to embed."""
    import torch

    from adapt.embed.table import embedder_of
    from adapt.evaluate.embed import knn_accuracy
    from adapt.model.locate import Pretrained

    torch.set_num_threads(2)
    (known, labels), (asked, truth) = (texts_of(data, split, every) for split in ("train", "test"))
    embedder = embedder_of(kind, QUICK_OPTIONS.get(kind, {}) if quick else {}, 0, Pretrained(model, model))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        began = time.monotonic()
        learnt = embedder.learn(known, Path(folder))
        between = time.monotonic()
        embedder.load(Path(folder))
        vectors = [embedder.embed(texts).vectors for texts in (known, asked)]
        seconds = (between - began, time.monotonic() - between)
    accuracy = knn_accuracy(vectors[0], labels, vectors[1], truth, NEIGHBOURS)
    return accuracy or 0.0, learnt, seconds


def texts_of(data: Path, split: str, every: int) -> tuple[list[str], np.ndarray]:
    """Texts of a split with words in them, and their groups."""
    with gzip.open(data / "tasks" / "newsgroups" / f"{split}.jsonl.gz", "rt") as lines:
        records = [json.loads(line) for line in lines][::every]
    records = [record for record in records if record["text"].strip()]
    return [record["text"] for record in records], np.array([str(record["label"]) for record in records])


if __name__ == "__main__":
    main("embedders", TARGETS, measure)

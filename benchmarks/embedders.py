"""Embedders on 20 newsgroups: coherence of VAMPIRE's topics, and how well nearest neighbours know the group of a text.

`npmi`: the mean normalized pointwise mutual information of the ten first words of VAMPIRE's topics, counted on the
training texts. `accuracy_...`: share of test texts whose ten nearest train texts by cosine vote for their group.
VAMPIRE and TF-IDF learn from the train texts; the transformer is a small one, and lends `static` its embeddings.
All embed the first 1,000 characters of each text. `--quick`: a thirtieth of the texts, and three epochs.
"""

import gzip
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import Options, Result, apart, main, workplace
from benchmarks.texts import SMALL

if TYPE_CHECKING:
    from adapt.embed.base import Embedder

TARGETS = {
    "npmi": (">=", 0.1),
    "accuracy_vampire": (">=", 0.4),
    "accuracy_tfidf": (">=", 0.4),
    "accuracy_static": (">=", 0.2),
    "accuracy_transformer": (">=", 0.2),
}
NEIGHBOURS = 10
CHARACTERS = 1000
"""What is embedded of a text."""
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
    from adapt.embed.table import embedder_of
    from adapt.evaluate.embed import knn_accuracy
    from adapt.model.locate import Pretrained
    from adapt.train.threads import use_threads

    use_threads()
    (known, labels), (asked, truth) = (texts_of(data, split, every) for split in ("train", "test"))
    embedder = embedder_of(kind, QUICK_OPTIONS.get(kind, {}) if quick else {}, 0, Pretrained(model, model))
    with workplace() as folder:
        began = time.monotonic()
        learnt = learnt_from(known, embedder, folder) if embedder.learns else {}
        between = time.monotonic()
        embedder.load(folder)
        vectors = [embedder.embed([text[:CHARACTERS] for text in texts]).vectors for texts in (known, asked)]
        seconds = (between - began, time.monotonic() - between)
    accuracy = knn_accuracy(vectors[0], labels, vectors[1], truth, NEIGHBOURS)
    return accuracy or 0.0, learnt, seconds


def learnt_from(texts: list[str], embedder: "Embedder", folder: Path) -> dict[str, float]:
    """Learns as jobs do, on a Ray of its own, whose start is counted."""
    from adapt.config import ResourcesConfig
    from adapt.embed.learn import learn_embedder
    from adapt.embed.sources import LinesSource
    from adapt.runtime import connect

    file, resources = folder / "texts.jsonl", ResourcesConfig()
    lines = (json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts))
    file.write_text("".join(lines), encoding="utf-8")
    connect(resources)
    return learn_embedder(embedder, [LinesSource(file)], folder, resources)


def texts_of(data: Path, split: str, every: int) -> tuple[list[str], np.ndarray]:
    """Texts of a split with words in them, and their groups."""
    with gzip.open(data / "tasks" / "newsgroups" / f"{split}.jsonl.gz", "rt") as lines:
        records = [json.loads(line) for line in lines][::every]
    records = [record for record in records if record["text"].strip()]
    return [record["text"] for record in records], np.array([str(record["label"]) for record in records])


if __name__ == "__main__":
    main("embedders", TARGETS, measure)

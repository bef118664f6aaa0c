"""Measures embedders on 20 newsgroups: coherence of VAMPIRE's topics, and accuracy of nearest neighbours.

`npmi`: mean normalized pointwise mutual information of the top ten words of VAMPIRE's topics, on the training texts.
`accuracy_...`: share of test texts whose newsgroup is the majority among the ten nearest train texts, by cosine.
VAMPIRE and TF-IDF learn from the train texts. `transformer` is a small pretrained model, and `static`
uses only the token embeddings of this model.
Each text is cut to 1,000 characters. `--quick` uses a thirtieth of the texts, too few for good topics.
"""

import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.common import Options, Result, apart, main, workplace
from benchmarks.texts import SMALL

if TYPE_CHECKING:
    from adapt.embed.embedder import Embedder

TARGETS = {
    "npmi": (">=", 0.1),
    "accuracy_vampire": (">=", 0.4),
    "accuracy_tfidf": (">=", 0.4),
    "accuracy_static": (">=", 0.2),
    "accuracy_transformer": (">=", 0.2),
}
NEIGHBOURS = 10
CHARACTERS = 1000
"""Number of characters at the beginning of each text that are embedded."""
QUICK_VAMPIRE = {"epochs": 20, "annealing_steps": 50}


class Measured(NamedTuple):
    """Accuracy, metrics of the training, and times of one embedder."""

    kind: str
    accuracy: float
    learnt: dict[str, float]
    learn_s: float
    embed_s: float


@dataclass(frozen=True)
class Split:
    """Texts, and the newsgroup of each text."""

    texts: list[str]
    groups: np.ndarray


def measure(options: Options) -> Result:
    """Measures trained embedders in one process with Ray, and embedders with a pretrained model in another process."""
    if not options.data or not options.models:
        raise SystemExit("this benchmark needs --data (tasks/newsgroups) and --models")
    given = options.data, options.models / SMALL, options.quick
    found = [
        each for kinds in (("vampire", "tfidf"), ("static", "transformer")) for each in apart(all_of, kinds, *given)
    ]
    figures = {f"accuracy_{each.kind}": each.accuracy for each in found}
    figures = {"npmi": found[0].learnt["npmi"], **figures}
    return Result(figures, [(each.kind, described(each)) for each in found])


def described(each: Measured) -> str:
    """Formats the times and training metrics of an embedder as a line of details."""
    told = "".join(f"; {name} {value:.4g}" for name, value in each.learnt.items())
    return f"{each.learn_s:.0f} s to learn, {each.embed_s:.0f} s to embed{told}"


def all_of(kinds: Sequence[str], data: Path, model: Path, quick: bool) -> list[Measured]:
    """Measures several embedders in turn."""
    from adapt.train.worker_process import use_threads

    use_threads()
    known, asked = (split_of(data, name, 30 if quick else 1) for name in ("train", "test"))
    return [measured(kind, known, asked, model, quick) for kind in kinds]


def measured(kind: str, known: Split, asked: Split, model: Path, quick: bool) -> Measured:
    """Measures an embedder: its accuracy, the metrics of its training, and its times.

    VAMPIRE is measured a second time, with the kind of vectors that kNN-TAPT's published script uses.
    """
    from adapt.embed.embedder import embedder_of
    from adapt.model.locate import Pretrained

    options: dict[str, Any] = QUICK_VAMPIRE if quick and kind == "vampire" else {}
    embedder = embedder_of(kind, options, 0, Pretrained(model, model))
    with workplace() as folder:
        began = time.monotonic()
        learnt = learnt_from(known.texts, embedder, folder) if embedder.learns else {}
        between = time.monotonic()
        accuracy = accuracy_of(embedder, folder, known, asked)
        embedded = time.monotonic()
        if kind == "vampire":
            published = embedder_of(kind, {**options, "mix": "published"}, 0)
            learnt["accuracy, mix published"] = accuracy_of(published, folder, known, asked)
    return Measured(kind, accuracy, learnt, between - began, embedded - between)


def accuracy_of(embedder: "Embedder", folder: Path, known: Split, asked: Split) -> float:
    """Returns the share of texts for which the nearest neighbours' vote gives the right newsgroup."""
    from adapt.evaluate.probe import knn_labels

    embedder.load(folder)
    vectors = [embedder.embed([text[:CHARACTERS] for text in split.texts]).vectors for split in (known, asked)]
    return float((knn_labels(vectors[0], known.groups, vectors[1], NEIGHBOURS) == asked.groups).mean())


def learnt_from(texts: list[str], embedder: "Embedder", folder: Path) -> dict[str, float]:
    """Starts Ray, trains an embedder as jobs do, and returns the metrics of the training."""
    from adapt.config import ResourcesConfig
    from adapt.embed.cluster_embedding import learn_embedder
    from adapt.embed.text_chunks import LinesSource
    from adapt.ray.runtime import connect

    file, resources = folder / "texts.jsonl", ResourcesConfig()
    lines = (json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts))
    file.write_text("".join(lines), encoding="utf-8")
    connect(resources)
    return learn_embedder(embedder, [LinesSource(file)], folder, resources)


def split_of(data: Path, name: str, every: int) -> Split:
    """Returns the texts of a split with their newsgroups, without texts that contain no words."""
    with gzip.open(data / "tasks" / "newsgroups" / f"{name}.jsonl.gz", "rt") as lines:
        records = [json.loads(line) for line in lines][::every]
    records = [record for record in records if record["text"].strip()]
    return Split([record["text"] for record in records], np.array([str(record["label"]) for record in records]))


if __name__ == "__main__":
    main("embedders", TARGETS, measure)

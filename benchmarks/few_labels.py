"""Makes the data of the sequential studies: tasks with 100, 300 and 1,000 labels, their unlabelled text, and a pool.

python -m benchmarks.few_labels --data ../shared/data --out /tmp/labels
"""

import argparse
import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.slices import AMAZON, POOLED, first_documents

TASKS = {
    **{name: (name,) for name in ("scicite", "chemprot", "imdb", "scierc", "pubmedqa", "newsgroups", "laptop")},
    "amazon": tuple(f"amazon_{domain}" for domain in AMAZON),
}
"""The data folders of each task. The task `amazon` joins the product reviews of eight domains into one large test."""
LABELS = (100, 300, 1000)
"""Numbers of labelled examples. Each larger set contains the smaller sets."""
MOST = {"dev": 250, "test": 2500}
"""Maximum number of examples in a split."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for task, names in TASKS.items():
        sources = [arguments.data / "tasks" / name for name in names]
        target = arguments.out / "tasks" / task
        target.mkdir(parents=True, exist_ok=True)
        examples = shuffled(source / "train.jsonl.gz" for source in sources)
        for number in LABELS:
            write(target / f"train-{number}.jsonl.gz", examples[:number])
        write(target / "unlabelled.jsonl.gz", ({"text": example["text"]} for example in examples))
        for split, most in MOST.items():
            write(target / f"{split}.jsonl.gz", shuffled(source / f"{split}.jsonl.gz" for source in sources)[:most])
    corpora = arguments.out / "corpora"
    if not corpora.exists():
        corpora.symlink_to((arguments.data / "corpora").resolve())
    with gzip.GzipFile(arguments.out / "pool.jsonl.gz", "wb", mtime=0) as pool:
        for corpus in POOLED:
            pool.writelines(first_documents(arguments.data / "corpora" / f"{corpus}.jsonl.gz"))


def shuffled(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Reads the examples of one or several files in random order, always the same.

    A part of a split then has the classes of the whole split. ChemProt's dev split begins with few SUBSTRATE examples.
    """
    examples = []
    for file in files:
        with gzip.open(file, "rb") as lines:
            examples += [json.loads(line) for line in lines]
    random.Random(0).shuffle(examples)
    return examples


def write(file: Path, examples: Iterable[object]) -> None:
    """Writes examples without a time stamp, so that the same examples give the same bytes."""
    with gzip.GzipFile(file, "wb", mtime=0) as lines:
        lines.writelines(f"{json.dumps(example)}\n".encode() for example in examples)


if __name__ == "__main__":
    main()

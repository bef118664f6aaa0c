"""Writes question-abstract pairs from PubMedQA for the study of sentence vectors. Each abstract answers its question.

python -m benchmarks.sentence_pairs --data ../shared/data --out /tmp/data/pubmedqa
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

SPLITS = {"dev": ("dev", "test"), "test": ("train",)}
"""Splits of PubMedQA from which the pairs are made, keyed by split of the pairs. `dev` pairs choose learning rates,
and `test` pairs give the reported metrics. No model is trained on these pairs."""


def pairs_of(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields the question and the abstract of each example. The question ends at the first question mark."""
    for line in lines:
        question, mark, abstract = json.loads(line)["text"].partition("? ")
        if mark and abstract.strip():
            yield {"query": f"{question}?", "positive": abstract.strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, splits in SPLITS.items():
        files = [arguments.data / "tasks" / "pubmedqa" / f"{split}.jsonl.gz" for split in splits]
        lines = [line for file in files for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
        pairs = "".join(f"{json.dumps(pair, ensure_ascii=False)}\n" for pair in pairs_of(lines))
        (arguments.out / f"{name}.jsonl").write_text(pairs, encoding="utf-8")


if __name__ == "__main__":
    main()

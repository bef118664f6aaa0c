"""Makes the data of the studies in docs/science: the first examples of larger tasks, and a pool from five corpora.

python -m benchmarks.slices --data ../shared/data --out /tmp/data
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

AMAZON = ("camera_photo", "electronics", "apparel", "music", "kitchen_housewares", "toys_games", "baby", "books")
TASKS = (
    *("acl_arc", "scierc", "chemprot", "scicite", "restaurant", "imdb", "newsgroups"),
    *(f"amazon_{domain}" for domain in AMAZON),
)
FIRST = {
    **{(task, "train"): 2000 for task in ("scierc", "chemprot", "scicite", "restaurant", "newsgroups")},
    ("newsgroups", "dev"): 500,
    ("newsgroups", "test"): 1500,
    ("imdb", "train"): 1000,
    ("imdb", "dev"): 300,
    ("imdb", "test"): 1000,
}
"""Number of examples to use, keyed by task and split. If a split is not listed, all of its examples are used."""
POOLED = ("cs_acl_abstracts", "biomed_pubmed", "biomed_medquad", "reviews_imdb", "general_enwiki")
POOL_CHARACTERS = 3_000_000
"""Number of characters that each corpus adds to the pool. It may add slightly more, because no document is cut."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for task in TASKS:
        for split in ("train", "dev", "test"):
            source, target = (
                folder / "tasks" / task / f"{split}.jsonl.gz" for folder in (arguments.data, arguments.out)
            )
            target.parent.mkdir(parents=True, exist_ok=True)
            with gzip.open(source, "rb") as lines, gzip.GzipFile(target, "wb", mtime=0) as cut:
                cut.writelines(islice(lines, FIRST.get((task, split))))
    (arguments.out / "corpora").symlink_to((arguments.data / "corpora").resolve())
    with gzip.GzipFile(arguments.out / "pool.jsonl.gz", "wb", mtime=0) as pool:
        for corpus in POOLED:
            pool.writelines(first_documents(arguments.data / "corpora" / f"{corpus}.jsonl.gz"))


def first_documents(corpus: Path) -> Iterator[bytes]:
    """Yields lines of a corpus until they have POOL_CHARACTERS characters in total."""
    left = POOL_CHARACTERS
    with gzip.open(corpus, "rb") as lines:
        while left > 0 and (line := next(lines, None)):
            left -= len(json.loads(line)["text"])
            yield line


if __name__ == "__main__":
    main()

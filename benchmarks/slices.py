"""The slices of the tasks that docs/replication.md was made with: the first examples of the larger ones.

python -m benchmarks.slices --data ../shared/data --out /tmp/data
"""

import argparse
import gzip
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
"""Examples of a split; all where none are named."""


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


if __name__ == "__main__":
    main()

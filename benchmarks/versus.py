"""Compares two groups of fine-tuning runs on one task. The runs may come from any chains and models.

python -m benchmarks.versus 'runs/finetune/finetune-DAPT-acl_arc-*' 'other/finetune/finetune-base-acl_arc-*'
"""

import argparse
import glob
from pathlib import Path

from adapt.runner.record import load_record
from adapt.show.report.study_results import Predictions, read_predictions
from adapt.statistics.comparison import compare, verdict


def runs(pattern: str) -> Predictions:
    """Returns the predictions of the finished runs whose folders match a pattern."""
    found = [load_record(Path(folder)) for folder in sorted(glob.glob(pattern))]
    records = [record for record in found if record]
    if not records:
        raise SystemExit(f"no finished run matches {pattern}")
    task = load_record(Path(records[0].inputs["task"]["path"]))
    return read_predictions(records, list(task.metrics["labels"]) if task else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("one")
    parser.add_argument("other")
    arguments = parser.parse_args()
    one, other = runs(arguments.one), runs(arguments.other)
    print("all test examples:", verdict(compare(one.tested, other.tested)))
    if one.clean and other.clean:
        print("without leaks:", verdict(compare(one.clean, other.clean)))


if __name__ == "__main__":
    main()

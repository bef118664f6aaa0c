"""Teaches a model a labelled task, with several seeds side by side, and scores it on the test split.

python jobs/finetune.py --model.path runs/export/dapt-1234abcd5678ef90 --task.train train.jsonl --task.dev dev.jsonl \
    --task.test test.jsonl [--finetune.mode lora] [--config FILE] [--section.field VALUE ...]
"""

import sys

from adapt.config.kinds import KINDS
from adapt.console import finish, run_job
from adapt.parse import parse
from adapt.runner import Store
from adapt.stages import Catalogue, run_stages
from adapt.summary import show_scores


def main() -> None:
    """Parses, builds the stages, runs the seeds that are not done, shows the scores."""
    catalogue = Catalogue(parse(sys.argv[1:], "jobs/finetune.py", KINDS["finetune"]))
    (record,) = run_stages([catalogue.scores()], Store(catalogue.root), catalogue.config.resources)
    task = catalogue.config.task.name
    show_scores(record, task)
    finish("finetune", record.path, {"task": task, **record.metrics})


if __name__ == "__main__":
    run_job(main)

"""Task-adaptive pre-training: adapts a language model to the text of a labelled task, whose labels it does not see.

python jobs/tapt.py --model.path runs/export/dapt-1234abcd5678ef90 --task.train train.jsonl --task.dev dev.jsonl \
    --task.test test.jsonl [--config FILE] [--section.field VALUE ...]
"""

import sys

from adapt.config.kinds import KINDS
from adapt.console import finish, run_job
from adapt.parse import parse
from adapt.runner import Store, ensure
from adapt.stages import Catalogue
from adapt.summary import show_summary


def main() -> None:
    """Parses, builds the stages, runs what is not done, shows the result."""
    catalogue = Catalogue(parse(sys.argv[1:], "jobs/tapt.py", KINDS["tapt"]))
    record = ensure(catalogue.tapt(), Store(catalogue.root))
    show_summary(record)
    finish("tapt", record.path, record.metrics)


if __name__ == "__main__":
    run_job(main)

"""Task-adaptive pre-training: adapts a language model to the text of a labelled task, whose labels it does not see.

python jobs/tapt.py --model.path runs/export/dapt-1234abcd5678ef90 --task.train train.jsonl --task.dev dev.jsonl \
    --task.test test.jsonl [--config FILE] [--section.field VALUE ...]
"""

import sys

from adapt.console import run_job
from adapt.job.run import carry_out
from adapt.job.tapt import JOB

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, sys.argv[1:]))

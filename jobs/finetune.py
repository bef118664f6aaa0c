"""Fine-tunes a model on a labelled task, with several seeds side by side, and scores it on the test split.

python jobs/finetune.py --model.path runs/export/dapt-1234abcd5678ef90 --task.train train.jsonl --task.dev dev.jsonl \
    --task.test test.jsonl [--finetune.mode lora] [--config FILE] [--section.field VALUE ...]
"""

import sys

from adapt.console import run_job
from adapt.job.finetune import JOB
from adapt.job.run import carry_out

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, sys.argv[1:]))

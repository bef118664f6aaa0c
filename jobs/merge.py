"""Makes models of others without training: interpolation, averages, task arithmetic, TIES, DARE, instruction residuals.

python jobs/merge.py --model.path FacebookAI/roberta-base --merge.models '[runs/export/biomed-1234abcd5678ef90]' \
    --merge.kind interpolate --merge.shares '[0.25, 0.5, 0.75]' [--config FILE] [--section.field VALUE ...]

It needs neither Ray nor a GPU, and holds one tensor of each model in memory.
"""

import sys

from adapt.console import run_job
from adapt.job.merge import JOB
from adapt.job.run import carry_out

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, sys.argv[1:]))

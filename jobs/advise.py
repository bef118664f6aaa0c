"""Says which recipe to run first for a corpus and tasks, at what cost, and on what evidence.

python jobs/advise.py --config my.yaml [--section.field VALUE ...]

The job samples the corpus and does not prepare it; it needs no Ray and no GPU.
"""

import sys

from adapt.console import run_job
from adapt.job.advise import JOB
from adapt.job.run import carry_out

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, sys.argv[1:]))

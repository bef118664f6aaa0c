"""Domain-adaptive pre-training: adapts a language model to a corpus and says what it gained and forgot.

python jobs/dapt.py --config jobs/recipes/demo.yaml [--section.field VALUE ...]
ray job submit --working-dir . -- python jobs/dapt.py --config my.yaml
"""

import sys

from adapt.console import run_job
from adapt.job.dapt import JOB
from adapt.job.run import carry_out

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, sys.argv[1:]))

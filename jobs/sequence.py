"""Adapts a model to one domain after another without forgetting: each of `corpus.sources` is a domain with its tasks.

python jobs/sequence.py --config jobs/recipes/sequence.yaml [--section.field VALUE ...]
ray job submit --working-dir . -- python jobs/sequence.py --config my.yaml
"""

import sys

from adapt.console import run_job
from adapt.job.run import carry_out
from adapt.job.sequence import JOB

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, sys.argv[1:]))

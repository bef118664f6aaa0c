"""Measures how similar the domains of `corpus.sources` are: by shared words, and by each model's loss on each domain.

python jobs/similarity.py --config my.yaml [--section.field VALUE ...]

It leaves a table, similarity.json and similarity.png.
"""

import sys

from adapt.console import run_job
from adapt.job.run import carry_out
from adapt.job.similarity import JOB

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, sys.argv[1:]))

"""How near the domains of `corpus.sources` are to each other: shared words, and what a model of one makes of another.

python jobs/similarity.py --config my.yaml [--section.field VALUE ...]

leaves a table, similarity.json and similarity.png.
"""

import sys

from adapt.console import run_job
from adapt.job.run import carry_out
from adapt.job.similarity import JOB

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, sys.argv[1:]))

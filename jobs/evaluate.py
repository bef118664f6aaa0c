"""Compares models: held-out loss on several domains and on general text, and, where asked, features and perplexity.

python jobs/evaluate.py --config my.yaml [--section.field VALUE ...]

It leaves a table, matrix.json and matrix.png. The first model is model.path; the others are comparison.models.
"""

import sys

from adapt.console import run_job
from adapt.job.evaluate import JOB
from adapt.job.run import carry_out

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, sys.argv[1:]))

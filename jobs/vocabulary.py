"""Measures how the model's tokenizer breaks a domain's words: pieces a word, broken words, what more tokens would save.

python jobs/vocabulary.py analyze --config my.yaml [--section.field VALUE ...]

It writes a table, and the curves as a picture.
"""

import sys

from adapt.console import run_job
from adapt.job.run import carry_out
from adapt.job.vocabulary import JOB, told

if __name__ == "__main__":
    run_job(lambda: carry_out(JOB, told(sys.argv[1:])))

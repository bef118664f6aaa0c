"""Compares models: held-out loss on several domains and on general text, and, where asked, features and perplexity.

python jobs/evaluate.py --config my.yaml [--section.field VALUE ...]

leaves a table, matrix.json and matrix.png. The first model is model.path; the others are comparison.models.
"""

import sys

from adapt.config.kinds import KINDS
from adapt.console import finish, run_job
from adapt.parse import parse
from adapt.runner import Store, ensure
from adapt.stages import Catalogue
from adapt.summary import show_comparison


def main() -> None:
    """Parses, prepares what is not prepared, measures each model, shows them side by side."""
    catalogue = Catalogue(parse(sys.argv[1:], "jobs/evaluate.py", KINDS["evaluate"]))
    record = ensure(catalogue.compared(), Store(catalogue.root))
    show_comparison(record)
    finish("evaluate", record.path, record.metrics)


if __name__ == "__main__":
    run_job(main)

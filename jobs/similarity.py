"""How near the domains of `corpus.sources` are to each other: shared words, and what a model of one makes of another.

python jobs/similarity.py --config my.yaml [--section.field VALUE ...]

leaves a table, similarity.json and similarity.png.
"""

import sys

from adapt.config.kinds import KINDS
from adapt.console import finish, run_job
from adapt.parse import parse
from adapt.runner import Store, ensure
from adapt.stages import Catalogue
from adapt.summary import show_similarity


def main() -> None:
    """Parses, prepares what is not prepared, compares, shows the result."""
    config = parse(sys.argv[1:], "jobs/similarity.py", KINDS["similarity"])
    catalogue = Catalogue(config)
    record = ensure(catalogue.similarity(), Store(catalogue.root))
    show_similarity(record)
    finish("similarity", record.path, record.metrics)


if __name__ == "__main__":
    run_job(main)

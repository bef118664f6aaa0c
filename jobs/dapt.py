"""Domain-adaptive pre-training: adapts a masked language model to a corpus and says what it gained and forgot.

python jobs/dapt.py --config jobs/recipes/demo.yaml [--section.field VALUE ...]
ray job submit --working-dir . -- python jobs/dapt.py --config my.yaml
"""

import sys

from adapt.console import finish, run_job
from adapt.parse import parse
from adapt.runner import Store, ensure
from adapt.stages import Catalogue
from adapt.summary import show_summary


def main() -> None:
    """Parses, builds the stages, runs what is not done, shows the result."""
    config = parse(sys.argv[1:], "jobs/dapt.py")
    catalogue = Catalogue(config)
    record = ensure(catalogue.dapt(), Store(catalogue.root))
    show_summary(record)
    finish("dapt", record.path, record.metrics)


if __name__ == "__main__":
    run_job(main)

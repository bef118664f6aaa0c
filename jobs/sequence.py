"""Learns one domain after another without forgetting: every source of the corpus is a domain, with its end tasks.

python jobs/sequence.py --config jobs/recipes/das.yaml [--section.field VALUE ...]
ray job submit --working-dir . -- python jobs/sequence.py --config my.yaml
"""

import sys

from adapt.config.kinds import KINDS
from adapt.console import finish, run_job
from adapt.parse import parse
from adapt.runner import Store
from adapt.stages import Catalogue, run_stages
from adapt.summary import show_sequence


def main() -> None:
    """Parses, builds the stages of all domains, runs what is not done, shows what was learnt and what forgotten."""
    catalogue = Catalogue(parse(sys.argv[1:], "jobs/sequence.py", KINDS["das"]))
    sequence, store, resources = catalogue.sequence(), Store(catalogue.root), catalogue.config.resources
    data = [stage for stage in sequence.inputs.values() if stage.stage in ("prepare", "task")]
    run_stages(data, store, resources)  # what is wrong with the last domain's is known before the first is learnt
    (record,) = run_stages([sequence], store, resources)
    show_sequence(record)
    finish("das", record.path, record.metrics)


if __name__ == "__main__":
    run_job(main)

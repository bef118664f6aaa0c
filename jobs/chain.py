"""Looks at a chain without running it.

    python jobs/chain.py plan --config FILE [--section.field VALUE ...]

prints, for each stage, whether it is done or would run, and against the nearest finished stage which field changed;
then what the training ahead will take: memory, work, time and price, as far as they can be said.
"""

import sys

from adapt.chain import Store, plan
from adapt.console import finish, run_job
from adapt.errors import ConfigError
from adapt.parse import parse
from adapt.stages import Catalogue
from adapt.summary import show_forecast, show_plan


def main() -> None:
    """Parses, builds the stages, shows which are done."""
    if sys.argv[1:2] != ["plan"]:
        raise ConfigError(
            f"unknown command {' '.join(sys.argv[1:2]) or '(none)'}", "use: jobs/chain.py plan --config FILE"
        )
    catalogue = Catalogue(parse(sys.argv[2:], "jobs/chain.py plan", "What a job would do."))
    store = Store(catalogue.root)
    planned = plan(catalogue.dapt(), store)
    show_plan(planned)
    training = next(line for line in planned if line.stage.stage == "train")
    records = {line.stage.key: line.record for line in planned}
    corpora = {name: records[stage.key] for name, stage in training.stage.inputs.items()}
    ahead = None if training.record else catalogue.forecast(store, corpora)
    if ahead:
        show_forecast(ahead.lines())
    finish("plan", catalogue.root, {"done": sum(p.record is not None for p in planned), "stages": len(planned)})


if __name__ == "__main__":
    run_job(main)

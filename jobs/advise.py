"""Says which recipe to run first for a corpus and tasks, at what cost, and on what evidence.

python jobs/advise.py --config my.yaml [--section.field VALUE ...]

The corpus is sampled and not prepared; needs no Ray and no GPU.
"""

import sys

from adapt.config.kinds import KINDS
from adapt.console import finish, run_job
from adapt.parse import parse
from adapt.runner import Store, ensure
from adapt.stages.advising import Advising
from adapt.summary import show_advice


def main() -> None:
    """Parses, gathers the evidence where that is not done, shows what follows from it."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    advising = Advising(parse(arguments, "jobs/advise.py", KINDS["advise"]))
    evidence = ensure(advising.evidence(), Store(advising.root))
    advice = advising.advice(evidence, arguments)
    show_advice(evidence.metrics, advice)
    finish("advise", evidence.path, {"evidence": evidence.metrics, **advice})


if __name__ == "__main__":
    run_job(main)

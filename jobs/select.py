"""Selects the documents of a pool that are worth training on for a task, and says what they are beside random ones.

python jobs/select.py --config my.yaml [--section.field VALUE ...]

It leaves texts.jsonl, which jobs/dapt.py takes as corpus.paths; examples.json, to be read; and a table.
"""

import sys

if __name__ == "select":  # Python puts this folder first where a job runs, and somebody means the standard library
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    folder = __file__.rpartition("/")[0]
    spec = PathFinder.find_spec("select", [place for place in sys.path if place and place.rstrip("/") != folder])
    assert spec
    assert spec.loader
    sys.modules["select"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["select"])
else:
    from adapt.console import run_job
    from adapt.job.run import carry_out
    from adapt.job.select import JOB

    if __name__ == "__main__":
        run_job(lambda: carry_out(JOB, sys.argv[1:]))

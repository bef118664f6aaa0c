"""Says which recipe to run first for a corpus and tasks, at what cost, and on what evidence.

`ray job submit --working-dir . -- python jobs/advise.py ...` runs it on a cluster. The arguments are those of
`dontstop advise`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["advise", *sys.argv[1:]])

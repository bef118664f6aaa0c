"""Runs a chain of stages from one file, here or on a cluster.

`ray job submit --working-dir . -- python jobs/chain.py ...` runs it on a cluster. The arguments are those of
`dontstop chain`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["chain", *sys.argv[1:]])

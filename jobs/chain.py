"""Runs several jobs from one chain file, on this machine or on a cluster.

The arguments are those of `dontstop chain`.
On a cluster: `ray job submit --working-dir . -- python jobs/chain.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["chain", *sys.argv[1:]])

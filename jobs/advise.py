"""Recommends which recipe to run first for a corpus and tasks, with its cost and the evidence.

The arguments are those of `dontstop advise`.
On a cluster: `ray job submit --working-dir . -- python jobs/advise.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["advise", *sys.argv[1:]])

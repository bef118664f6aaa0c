"""Measures how similar the domains in `corpus.sources` are.

The arguments are those of `dontstop similarity`.
On a cluster: `ray job submit --working-dir . -- python jobs/similarity.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["similarity", *sys.argv[1:]])

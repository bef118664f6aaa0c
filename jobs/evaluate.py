"""Compares models by their held-out loss on several domains and on general text.

The arguments are those of `dontstop evaluate`.
On a cluster: `ray job submit --working-dir . -- python jobs/evaluate.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["evaluate", *sys.argv[1:]])

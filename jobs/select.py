"""Selects the documents of a pool that are worth training on for a task.

The arguments are those of `dontstop select`.
On a cluster: `ray job submit --working-dir . -- python jobs/select.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["select", *sys.argv[1:]])

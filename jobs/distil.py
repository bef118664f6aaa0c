"""Trains a student that learns the mean prediction of its teachers.

The arguments are those of `dontstop distil`.
On a cluster: `ray job submit --working-dir . -- python jobs/distil.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["distil", *sys.argv[1:]])

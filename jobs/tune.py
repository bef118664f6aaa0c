"""Searches for good values of a job's fields, by trials that are measured on dev and never on test.

The arguments are those of `dontstop tune`.
On a cluster: `ray job submit --working-dir . -- python jobs/tune.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["tune", *sys.argv[1:]])

"""Searches good values for fields of a job, by trials that are measured on dev and never on test.

`ray job submit --working-dir . -- python jobs/tune.py ...` runs it on a cluster. The arguments are those of
`dontstop tune`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["tune", *sys.argv[1:]])

"""Selects the documents of a pool that are worth training on for a task.

`ray job submit --working-dir . -- python jobs/select.py ...` runs it on a cluster. The arguments are those of
`dontstop select`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["select", *sys.argv[1:]])

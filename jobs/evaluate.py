"""Compares models: held-out loss on several domains and on general text.

`ray job submit --working-dir . -- python jobs/evaluate.py ...` runs it on a cluster. The arguments are those of
`dontstop evaluate`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["evaluate", *sys.argv[1:]])

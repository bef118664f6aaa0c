"""Adapts a model to one domain after another without forgetting.

`ray job submit --working-dir . -- python jobs/sequence.py ...` runs it on a cluster. The arguments are those of
`dontstop sequence`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["sequence", *sys.argv[1:]])

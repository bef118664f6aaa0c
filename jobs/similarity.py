"""Measures how similar the domains of `corpus.sources` are.

`ray job submit --working-dir . -- python jobs/similarity.py ...` runs it on a cluster. The arguments are those of
`dontstop similarity`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["similarity", *sys.argv[1:]])

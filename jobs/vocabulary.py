"""Analyzes, extends, trims or builds a vocabulary.

`ray job submit --working-dir . -- python jobs/vocabulary.py ...` runs it on a cluster. The arguments are those of
`dontstop vocabulary`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["vocabulary", *sys.argv[1:]])

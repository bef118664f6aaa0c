"""Adapts a language model to the text of a labelled task, without its labels (TAPT).

The arguments are those of `dontstop tapt`.
On a cluster: `ray job submit --working-dir . -- python jobs/tapt.py ...`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # or `import select` would find jobs/select.py
    from adapt.cli.main import main

    main(["tapt", *sys.argv[1:]])

"""Adapts a language model to the text of a labelled task, without its labels (TAPT).

The arguments are those of `dontstop tapt`.
On a cluster: `ray job submit --working-dir . -- python jobs/tapt.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["tapt", *sys.argv[1:]])

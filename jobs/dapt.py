"""Adapts a language model to a corpus (DAPT) and measures what it gained and forgot.

The arguments are those of `dontstop dapt`.
On a cluster: `ray job submit --working-dir . -- python jobs/dapt.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["dapt", *sys.argv[1:]])

"""Analyzes, extends, trims or builds the vocabulary of a model.

The arguments are those of `dontstop vocabulary`.
On a cluster: `ray job submit --working-dir . -- python jobs/vocabulary.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["vocabulary", *sys.argv[1:]])

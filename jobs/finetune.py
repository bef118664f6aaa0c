"""Fine-tunes a model on a labelled task with several seeds and scores it on the test split.

The arguments are those of `dontstop finetune`.
On a cluster: `ray job submit --working-dir . -- python jobs/finetune.py ...`.
"""

import sys

if __name__ == "__main__":
    # imports from the project's folder and not from jobs/, where `import select` would find jobs/select.py
    sys.path[0] = sys.path[0].removesuffix("/jobs")
    from adapt.cli.main import main

    main(["finetune", *sys.argv[1:]])

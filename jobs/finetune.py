"""Fine-tunes a model on a labelled task, with several seeds side by side, and scores it on the test split.

`ray job submit --working-dir . -- python jobs/finetune.py ...` runs it on a cluster. The arguments are those of
`dontstop finetune`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["finetune", *sys.argv[1:]])

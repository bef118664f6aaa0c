"""Task-adaptive pre-training: adapts a language model to the text of a labelled task, without its labels.

`ray job submit --working-dir . -- python jobs/tapt.py ...` runs it on a cluster. The arguments are those of
`dontstop tapt`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["tapt", *sys.argv[1:]])

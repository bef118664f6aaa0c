"""Domain-adaptive pre-training: adapts a language model to a corpus and says what it gained and forgot.

`ray job submit --working-dir . -- python jobs/dapt.py ...` runs it on a cluster. The arguments are those of
`dontstop dapt`.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/jobs")  # else jobs/select.py is taken for the standard library's select
    from adapt.cli.main import main

    main(["dapt", *sys.argv[1:]])

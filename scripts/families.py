"""Writes scripts/families.json, which says how each model family (`model_type`) takes documents, or why it is refused.

`python -m scripts.families` tests a tiny random model of each family in the file again, which takes a few minutes. With
`--add FAMILY ...`, it tests only these families and adds them to the file. `scripts/reference.py` makes the table of
the documentation from the file, and `tests/model/test_families.py` fails if an outcome differs from the file.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from adapt.model.load import check_direction
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.tokenizer import is_decoder
from adapt.support.errors import ModelError
from scripts.reference import FAMILIES, ROOT
from tests.model.tiny_families import tiny_config, tiny_model

FILE = ROOT / "scripts" / "families.json"


def outcome(family: str) -> str:
    """Returns how a tiny random model of a family takes documents, or why it is refused."""
    config = tiny_config(family)
    try:
        check_direction(config, is_decoder(config), Path(family))
        return keep_documents_apart(tiny_model(family))
    except ModelError as error:
        reason = error.what.partition(" ")[2]  # without the name of the model
        return f"refused: {reason.partition(' (')[0]}"


def written(outcomes: Mapping[str, str]) -> str:
    """Returns the content of the file, with families in alphabetical order."""
    return json.dumps(dict(sorted(outcomes.items())), indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.families", description=__doc__)
    parser.add_argument("--add", nargs="+", metavar="FAMILY", help="model types to test and add to the file")
    families = parser.parse_args().add or FAMILIES
    FILE.write_text(written({**FAMILIES, **{family: outcome(family) for family in families}}), "utf-8")


if __name__ == "__main__":
    main()

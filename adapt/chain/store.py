"""Where stages live: `{root}/{stage}/{name}-{first 8 of key}/`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapt.chain.key import changes
from adapt.chain.record import Record, load_record


class Store:
    """Finds the folders and records of stages below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, stage: str, name: str, key: str) -> Path:
        """The folder of a stage: the one it has, also under an earlier name, or the one it will get."""
        for existing in sorted((self.root / stage).glob(f"*-{key[:8]}")):
            return existing
        return self.root / stage / f"{name}-{key[:8]}"

    def find(self, stage: str, name: str, key: str) -> Record | None:
        """The record of a finished stage with this key, under the name it goes by now."""
        record = load_record(self.folder(stage, name, key))
        return replace(record, name=name) if record and record.key == key else None

    def records(self, stage: str = "*") -> Iterator[Record]:
        """Every finished stage of a kind, in the order of their folders' names."""
        for file in sorted(self.root.glob(f"{stage}/*/stage.json")):
            if record := load_record(file.parent):
                yield record

    def nearest(
        self, stage: str, version: int, what: Mapping[str, Any], inputs: Mapping[str, str]
    ) -> tuple[Record, list[str]] | None:
        """The finished stage of this kind whose key differs in the fewest ingredients, and those."""
        new = _ingredients(version, what, inputs)
        candidates = [(record, changes(_of(record), new)) for record in self.records(stage)]
        return min(candidates, key=lambda pair: len(pair[1]), default=None)


def _of(record: Record) -> dict[str, Any]:
    return _ingredients(record.version, record.what, {name: made["key"] for name, made in record.inputs.items()})


def _ingredients(version: int, what: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    keys = {f"input {name}": key for name, key in inputs.items()}
    return {**what, **keys, "version of the stage's code": version}

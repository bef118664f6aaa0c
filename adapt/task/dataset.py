"""A prepared task: what stage `task` leaves in its folder, and how to read it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from adapt.runner.files import write_atomically

SPLITS = ("train", "dev", "test")
TASK_FILE = "task.json"
IGNORED = -100
"""For `tokens`, the label of tokens that do not begin a word, and of special tokens."""


@dataclass(frozen=True)
class Facts:
    """What fine-tuning must know of a task besides its examples."""

    name: str
    kind: str
    """`single_label`, `multi_label` or `tokens`."""
    labels: list[str]
    """Classes, sorted; a label is an index into them."""
    metric: str
    """`macro_f1`, `micro_f1`, `accuracy` or `entity_f1`."""

    def save(self, folder: Path) -> None:
        """Writes `task.json`."""
        write_atomically(folder / TASK_FILE, json.dumps(asdict(self), indent=1, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> "Facts":
        """Reads what `save` wrote."""
        return cls(**json.loads((folder / TASK_FILE).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Split:
    """The examples of one split, in the order of their files."""

    ids: list[str]
    tokens: list[np.ndarray]
    """The token ids of each example, int32, uncut, with special tokens. Pairs are joined as the tokenizer joins them.
    """
    segments: list[np.ndarray]
    """For each token its text, int8: 0 for the first, 1 for the second (token_type_ids)."""
    labels: list[int] | list[list[int]]
    """One index; for `multi_label` the indices of the labels that hold; for `tokens` one for each token, IGNORED if it
    has none."""
    leaked: list[bool]
    """Whether the same text, up to case and spaces, stands in the train split (False for train's own)."""

    def __len__(self) -> int:
        return len(self.ids)

    def save(self, folder: Path, split: str) -> None:
        """Writes `{split}.arrow`."""
        columns = {
            "id": pa.array(self.ids, pa.string()),
            "tokens": pa.array(self.tokens, pa.list_(pa.int32())),
            "segments": pa.array(self.segments, pa.list_(pa.int8())),
            "label": _label_column(self.labels),
            "leaked": pa.array(self.leaked, pa.bool_()),
        }
        table = pa.table(columns)
        with pa.OSFile(str(folder / f"{split}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    @classmethod
    def load(cls, folder: Path, split: str) -> "Split":
        """Reads what `save` wrote."""
        with pa.memory_map(str(folder / f"{split}.arrow")) as file:
            table = pa.ipc.open_file(file).read_all()
            arrays = {name: [np.array(row) for row in table[name].to_pylist()] for name in ("tokens", "segments")}
            return cls(
                table["id"].to_pylist(),
                [row.astype(np.int32) for row in arrays["tokens"]],
                [row.astype(np.int8) for row in arrays["segments"]],
                table["label"].to_pylist(),
                table["leaked"].to_pylist(),
            )


def _label_column(labels: Sequence[int] | Sequence[Sequence[int]]) -> pa.Array:
    is_single = bool(labels) and isinstance(labels[0], int)
    return pa.array(labels, pa.int64() if is_single else pa.list_(pa.int64()))

"""Writes and reads the files of a prepared task, the output of stage `task`."""

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
"""Label of tokens without a score in tasks of kind `tokens`: special tokens, and tokens that do not begin a word."""


@dataclass(frozen=True)
class Facts:
    """Name, kind, classes and metric of a task, which fine-tuning needs besides its examples."""

    name: str
    kind: str
    """`single_label`, `multi_label` or `tokens`."""
    labels: list[str]
    """Names of the classes, sorted. A label in `Split` is an index into this list."""
    metric: str
    """`macro_f1`, `micro_f1`, `accuracy` or `entity_f1`."""

    def save(self, folder: Path) -> None:
        """Writes `task.json` into the folder."""
        write_atomically(folder / TASK_FILE, json.dumps(asdict(self), indent=1, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> "Facts":
        """Reads `task.json` from the folder."""
        return cls(**json.loads((folder / TASK_FILE).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Split:
    """The examples of one split, in the order of their files."""

    ids: list[str]
    tokens: list[np.ndarray]
    """Token ids of each example, int32, with special tokens and not truncated. The tokenizer joins pairs of texts."""
    segments: list[np.ndarray]
    """Segments of each example (token_type_ids), int8: 0 for tokens of the first text and 1 for those of the second."""
    labels: list[int] | list[list[int]]
    """Labels of each example: the index of its class; for `multi_label`, a list of indices of classes; for `tokens`,
    one index per token, which is IGNORED for tokens without a label."""
    leaked: list[bool]
    """Whether the text of each example is also in train, ignoring case and spaces. In train itself, all are False."""

    def __len__(self) -> int:
        return len(self.ids)

    def save(self, folder: Path, split: str) -> None:
        """Writes `{split}.arrow` into the folder."""
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
        """Reads `{split}.arrow` from the folder."""
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

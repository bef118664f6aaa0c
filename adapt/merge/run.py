"""Merges models: every tensor of the base is read with those of the models, merged in fp32, and written in its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from adapt.merge.base import Merger, Merging
from adapt.merge.names import Names, same_tensors
from adapt.merge.stored import FLOATS, StoredWeights, Weights, stored_weights
from adapt.merge.table import MERGERS
from adapt.merge.write import formed_like, write_tensor
from adapt.model.locate import INDEX
from adapt.runner.files import link_or_copy

Matched = Sequence[tuple[Weights, Mapping[str, str]]]
"""Models, each with the name that it has for a tensor of the base."""


def merge_models(
    merging: Merging,
    base: Path,
    models: Sequence[tuple[Path, Weights]],
    targets: Mapping[float, Path],
    trust_remote_code: bool = False,
) -> int:
    """Writes the weights of the merged models, into files that are named and ordered as those of the base.

    Integers and booleans stay as the base has them, and so do parts that the models lack since no language model has
    them (a pooler).

    Args:
        merging: what is made.
        base: its folder.
        models: each with its folder, which messages name, and its weights.
        targets: a folder for each share.
        trust_remote_code: run code that comes with the base, where names differ.

    Returns:
        How many tensors were merged.

    Raises:
        ModelError: the tensors of a model are not those of the base; nothing was written then.
    """
    merger, names = MERGERS[merging.kind](merging), Names(base, trust_remote_code)
    with stored_weights(base) as stored:
        matched = [(weights, same_tensors(stored.shapes, weights.shapes, names, folder)) for folder, weights in models]
        chosen = [name for name in _floats(stored) if all(name in pairs for _, pairs in matched)]
        merger.look(lambda: (_read(name, stored, matched) for name in chosen))
        for file in stored.headers:
            _write_file(file, merger, stored, matched, {*chosen}, targets, names)
    for folder in targets.values():
        if (base / INDEX).is_file():
            link_or_copy(base / INDEX, folder / INDEX)
    return len(chosen)


def _floats(stored: StoredWeights) -> Iterator[str]:
    for header in stored.headers.values():
        yield from (name for name, form in header.items() if form["dtype"] in FLOATS)


def _read(name: str, stored: StoredWeights, matched: Matched) -> tuple[Tensor, list[Tensor]]:
    return stored.read(name).float(), [weights.read(pairs[name]).float() for weights, pairs in matched]


def _write_file(
    file: Path,
    merger: Merger,
    stored: StoredWeights,
    matched: Matched,
    chosen: set[str],
    targets: Mapping[float, Path],
    names: Names,
) -> None:
    with ExitStack() as stack:
        opened: dict[float, BinaryIO] = {
            share: stack.enter_context(formed_like(file, folder / file.name)) for share, folder in targets.items()
        }
        for name in stored.headers[file]:
            kept = stored.read(name)
            base, models = _read(name, stored, matched) if name in chosen else (kept, [])
            route = merger.route(names.first(name) if merger.is_random else name, base, models) if models else None
            for share, written in opened.items():
                write_tensor(written, route(share).to(kept.dtype) if route else kept)

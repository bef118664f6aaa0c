"""Merges models one tensor at a time: reads a tensor of all models, merges it in fp32, writes it in the base's type."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from adapt.merge.compatibility import NewTokens
from adapt.merge.merger import Merger, Merging
from adapt.merge.table import MERGERS
from adapt.merge.tensor_files import (
    FLOATS,
    Names,
    NewRows,
    Shapes,
    StoredWeights,
    Weights,
    formed_like,
    same_tensors,
    size_of,
    stored_weights,
    write_index,
    write_tensor,
)
from adapt.model.locate import INDEX
from adapt.model.safeguards import check_finite

TOO_LARGE = "go less far (merge.shares, merge.weights), or store the base in fp32, which holds larger numbers than fp16"
"""Advice in the error for merged weights that exceed the largest number of the base's data type."""


def merge_models(
    merging: Merging,
    base: Path,
    models: Sequence[tuple[Path, Weights]],
    targets: Mapping[float, Path],
    trust_remote_code: bool = False,
    tokens: NewTokens | None = None,
) -> int:
    """Writes the weights of the merged models. Files and tensors have the same names and order as in the base's folder.

    Tensors of integers or booleans are copied from the base. So are parts that only the base has and that no language
    model needs, such as a pooler.

    Args:
        merging: the options of the merge.
        base: folder of the base.
        models: for each model, its folder (for messages) and its weights.
        targets: target folder of each share.
        trust_remote_code: whether code that comes with the base may run. The code is needed if names or tokens differ.
        tokens: tokens that some models have and the base lacks. `adapt.merge.tensor_files` explains their rows.

    Returns:
        The number of tensors that were merged.

    Raises:
        ModelError: the tensors of a model do not match those of the base (then nothing was written), or a tensor that
            was read or merged has values that are not finite.
    """
    merger, names = MERGERS.load(merging.kind)(merging), Names(base, trust_remote_code)
    rows = NewRows(tokens, names) if tokens else None
    with stored_weights(base) as stored:
        shapes = [stored.shapes, *(weights.shapes for _, weights in models)]
        shapes = rows.shapes(shapes[0], shapes[1:]) if rows else shapes
        pairs = [same_tensors(shapes[0], own, names, model[0]) for own, model in zip(shapes[1:], models, strict=True)]
        folders = [str(folder) for folder in (base, *(folder for folder, _ in models))]
        sources = _Sources(stored, [weights for _, weights in models], pairs, rows, folders)
        forms = {name: form for header in stored.headers.values() for name, form in header.items()}
        floats = (name for name, form in forms.items() if form["dtype"] in FLOATS)
        chosen = [name for name in floats if all(name in pair for pair in pairs)]
        merger.look(lambda: (sources.read(name) for name in chosen))
        for file in stored.headers:
            _write_file(file, merger, sources, {*chosen}, targets, names, shapes[0])
        if (base / INDEX).is_file():
            grown = sum(size_of(form, shapes[0][name]) - size_of(form, form["shape"]) for name, form in forms.items())
            for folder in targets.values():
                write_index(base / INDEX, folder / INDEX, grown)
    return len(chosen)


@dataclass(frozen=True)
class _Sources:
    """The weights of the base and the models, and the names that each model uses for the base's tensors."""

    base: StoredWeights
    models: Sequence[Weights]
    pairs: Sequence[Mapping[str, str]]
    rows: NewRows | None
    folders: Sequence[str]
    """Folders of base and models, the base first, for messages."""
    checked: set[str] = field(default_factory=set)
    """Names of tensors that were already checked to be finite. Some merge methods read tensors twice."""

    def read(self, name: str) -> tuple[Tensor, list[Tensor]]:
        """Returns a tensor of the base and the matching tensor of each model, in fp32.

        Raises:
            ModelError: a tensor has values that are not finite.
        """
        base = self.base.read(name).float()
        models = [weights.read(pair[name]).float() for weights, pair in zip(self.models, self.pairs, strict=True)]
        if name not in self.checked:
            owns = [name, *(pair[name] for pair in self.pairs)]
            for tensor, own, folder in zip((base, *models), owns, self.folders, strict=True):
                check_finite(tensor, own, folder)
            self.checked.add(name)
        return self.rows.widen(name, base, models) if self.rows else (base, models)


def _write_file(
    file: Path,
    merger: Merger,
    sources: _Sources,
    chosen: set[str],
    targets: Mapping[float, Path],
    names: Names,
    shapes: Shapes,
) -> None:
    own = {name: shapes[name] for name in sources.base.headers[file]}
    with ExitStack() as stack:
        opened: dict[float, BinaryIO] = {
            share: stack.enter_context(formed_like(file, folder / file.name, own)) for share, folder in targets.items()
        }
        for name in own:
            original = sources.base.read(name)
            base, models = sources.read(name) if name in chosen else (original, [])
            route = merger.route(names.first(name) if merger.is_random else name, base, models) if models else None
            if not route:
                check_finite(original, name, sources.folders[0])
            for share, written in opened.items():
                merged = route(share).to(original.dtype) if route else original
                if route:
                    check_finite(merged, name, f"the merged model at share {share:g}", TOO_LARGE)
                write_tensor(written, merged)

"""Merges models one tensor at a time: reads a tensor of all models, merges it in fp32, writes it in the base's type.

A new file has the same tensors, in the same order and types, as the base's safetensors file.

Checkpoints of one architecture may differ in the names of tensors (`LayerNorm.gamma` or `LayerNorm.weight`), in the
prefix of names (`bert.`), in the name under which tied tensors are stored, and in parts that no language model has (a
pooler). The model class of transformers is instantiated without weights to find out which names are equivalent.

Some models may have embedding rows of tokens that the base lacks. Before merging, a missing row of a model is taken
from the base, and a missing row of the base is the mean of this row over the models that have it. So every merge
method treats these rows like all other rows. If only one model has a row, or the row is equal in all models that have
it, the merged row is this row at every share.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from adapt.merge.compatibility import NewTokens
from adapt.merge.merger import Merger, Merging
from adapt.merge.table import MERGERS
from adapt.model import load, locate, safeguards, tokenizer
from adapt.model.size import current_name, read_header
from adapt.runner.files import file_aside, link_or_copy, write_atomically
from adapt.support.errors import ModelError

FLOATS = {"F64", "F32", "F16", "BF16"}
"""Data types of safetensors whose tensors are merged."""
WHOLE = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
"""Data types of safetensors whose tensors are not merged, but copied from the base."""


class Weights(Protocol):
    """Gives access to the tensors of a model by name. The tensors are in a file or in memory."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor."""

    def read(self, name: str) -> Tensor:
        """Returns a tensor on the CPU, in its stored data type."""


@dataclass(frozen=True)
class StoredWeights:
    """The tensors of a model folder."""

    headers: Mapping[Path, Mapping[str, Mapping[str, Any]]]
    """For each file, its header: data type and shape of each tensor, keyed by name, in the order of the file."""
    _opened: Mapping[str, Any]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return {name: tuple(form["shape"]) for header in self.headers.values() for name, form in header.items()}

    def read(self, name: str) -> Tensor:
        """Returns one tensor. The tensor is memory-mapped, so its values are read from disk when they are used."""
        tensor: Tensor = self._opened[name].get_tensor(name)
        return tensor


@contextmanager
def stored_weights(folder: Path) -> Iterator[StoredWeights]:
    """Opens the weights of a model folder, and closes them at the end of the block.

    Raises:
        ModelError: a file is broken, or a tensor has a type that cannot be merged.
    """
    headers: dict[Path, dict[str, Any]] = {}
    opened: dict[str, Any] = {}
    with ExitStack() as stack:
        for file in locate.weight_files(folder):
            if file.suffix != ".safetensors":
                continue
            header = sorted(read_header(file).items(), key=lambda item: int(item[1]["data_offsets"][0]))
            for name, form in header:
                if form["dtype"] not in FLOATS | WHOLE:
                    raise ModelError(
                        f"{name} in {file} is of type {form['dtype']}, which cannot be merged",
                        "merge the version of the model that is not quantized",
                    )
            headers[file] = dict(header)
            handle = stack.enter_context(safe_open(file, framework="pt"))
            opened |= dict.fromkeys(headers[file], handle)
        yield StoredWeights(headers, opened)


METADATA = "__metadata__"
ALIGNED = 8
"""The length of a header is a multiple of this number [bytes]."""


@contextmanager
def formed_like(source: Path, target: Path, shapes: "Shapes") -> Iterator[BinaryIO]:
    """Creates a safetensors file with the tensor names, types and order of another file, and writes its header.

    The file is written under a temporary name, and renamed when the block ends.

    Args:
        source: an existing safetensors file.
        target: the new file. The caller writes its tensors in the order of the source.
        shapes: shapes of the new file's tensors. If they equal the shapes in the source, the header is identical.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    with source.open("rb") as known:
        header = _reshaped(known.read(int.from_bytes(known.read(8), "little")), shapes)
    with file_aside(target) as aside, aside.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        yield file


def _reshaped(header: bytes, shapes: "Shapes") -> bytes:
    """Returns a header with new shapes, and with new byte offsets for tensors of these shapes."""
    content = json.loads(header)
    forms = sorted((form["data_offsets"][0], name, form) for name, form in content.items() if name != METADATA)
    if all(tuple(form["shape"]) == shapes[name] for _, name, form in forms):
        return header
    offset = 0
    for _, name, form in forms:
        size = size_of(form, shapes[name])
        form |= {"shape": shapes[name], "data_offsets": (offset, offset + size)}
        offset += size
    written = json.dumps(content, separators=(",", ":")).encode()
    return written + b" " * (-len(written) % ALIGNED)


def size_of(form: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """Returns the size that a tensor with the entry `form` in a header would have with another shape [bytes]."""
    begin, end = form["data_offsets"]
    elements = prod(form["shape"])
    return (int(end) - int(begin)) // elements * prod(shape) if elements else 0


def write_index(source: Path, target: Path, grown: int) -> None:
    """Writes the index of a merged model with several weight files, which is `grown` bytes larger than the base.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    if not grown:
        link_or_copy(source, target)
        return
    content = locate.read_json(source)
    if "total_size" in (metadata := content.get("metadata") or {}):
        metadata["total_size"] += grown
    write_atomically(target, json.dumps(content, indent=2))


def write_tensor(file: BinaryIO, tensor: Tensor) -> None:
    """Writes the values of a tensor in the format of safetensors: little-endian, without gaps."""
    numbers: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    file.write(memoryview(numbers))


Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each tensor, by its name."""


@dataclass(frozen=True)
class Names:
    """Finds the names of the tensors of a model's architecture, and which names are equivalent."""

    folder: Path
    trust_remote_code: bool = False

    @cached_property
    def _model(self) -> Any:
        """The language model on the meta device. It has no weights, because only names and ties are needed."""
        config = tokenizer.load_config(self.folder, self.trust_remote_code)
        with safeguards.quiet(), torch.device("meta"):
            return load.model_class(config).from_config(config, trust_remote_code=self.trust_remote_code)

    @cached_property
    def of_language_model(self) -> set[str]:
        """Names of the language model's tensors. For tied tensors, only the first name is included."""
        return {self.first(name) for name in self._model.state_dict()}

    @cached_property
    def by_token(self) -> set[str]:
        """Names of tensors with one row per token: embeddings, head and head bias.

        For tied tensors, only the first name is included.
        """
        layers = (self._model.get_input_embeddings(), self._model.get_output_embeddings())
        parts = {id(part) for layer in layers if layer is not None for part in layer.parameters()}
        named = self._model.named_parameters(remove_duplicate=False)
        return {self.first(name) for name, part in named if id(part) in parts}

    def first(self, name: str) -> str:
        """Returns the current name of a tensor with its full prefix. For tied tensors, returns the first name."""
        name = current_name(name)
        known, prefix = self._known, f"{self._model.base_model_prefix}."
        if name not in known and prefix + name in known:
            name = prefix + name
        while name in self._model.all_tied_weights_keys:
            name = self._model.all_tied_weights_keys[name]
        return name

    @cached_property
    def _known(self) -> set[str]:
        return {*self._model.state_dict(), *self._model.all_tied_weights_keys}


def same_tensors(
    base: Shapes, model: Shapes, names: Names, folder: Path, read: Callable[[str], Tensor]
) -> dict[str, str]:
    """Returns the names of the base's tensors in the model, keyed by their names in the base.

    Parts that no language model has, such as a pooler, may be missing.

    Args:
        base: shapes of the base's tensors.
        model: shapes of the model's tensors.
        names: the tensor names of the base's architecture.
        folder: folder of the model, for messages.
        read: function that reads a tensor of the model.

    Raises:
        ModelError: the model lacks a tensor of the base, has an additional tensor, has a tensor of another shape, or
            has two different tensors that the base ties.
    """
    same = base.keys() == model.keys()
    pairs = {name: name for name in base} if same else _matched(base, model, names, folder, read)
    wrong = sorted(name for name, other in pairs.items() if base[name] != model[other])
    if wrong:
        shapes = f"{wrong[0]}: {list(model[pairs[wrong[0]]])} in the model, {list(base[wrong[0]])} in the base"
        raise ModelError(
            f"{folder} has a different architecture than the base: {len(wrong)} tensors have different shapes, such as"
            f" {shapes}",
            "merge only models that were trained from the same base",
        )
    return pairs


def _matched(base: Shapes, model: Shapes, names: Names, folder: Path, read: Callable[[str], Tensor]) -> dict[str, str]:
    theirs: dict[str, str] = {}
    for name in model:
        other = theirs.setdefault(names.first(name), name)
        if other != name and not torch.equal(read(other), read(name)):
            raise ModelError(
                f"{folder} has a different architecture than the base: its tensors {other} and {name} differ, but the"
                " base uses one tensor for both (tie_word_embeddings), so one of them would be lost",
                "merge only models whose head is tied to the embeddings, or store the base with a head of its own"
                " (tie_word_embeddings false in config.json, and both tensors in the weights)",
            )
    pairs = {name: theirs[names.first(name)] for name in base if names.first(name) in theirs}
    missing = sorted(name for name in base if name not in pairs and names.first(name) in names.of_language_model)
    ours = {names.first(name) for name in base}
    unknown = sorted(other for name, other in theirs.items() if name not in ours and name in names.of_language_model)
    for difference, differing in (("lacks", missing), ("also has", unknown)):
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise ModelError(
                f"{folder} has a different architecture than the base: it {difference} the tensors"
                f" {', '.join(differing[:3])}{more}",
                "merge only models that were trained from the same base and saved with their language-model head",
            )
    return pairs


@dataclass(frozen=True)
class NewRows:
    """Adds rows of new tokens to the tensors of the base and of models without these tokens."""

    tokens: NewTokens
    names: Names
    """The tensor names of the base's architecture."""

    def shapes(self, base: Shapes, models: Sequence[Shapes]) -> list[Shapes]:
        """Returns the shapes of the tensors of the base and of each model after the rows of new tokens were added."""
        wide = models[self.tokens.extended[0]]
        rows = {self.names.first(name): shape[0] for name, shape in wide.items() if self._has_rows(name)}
        return [
            _with_rows(own, {name: rows[first] for name in own if (first := self.names.first(name)) in rows})
            if index not in self.tokens.extended
            else own
            for index, own in enumerate([base, *models], -1)
        ]

    def widen(self, name: str, base: Tensor, models: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Adds the rows of new tokens to a tensor of the base, [V, ...] fp32, and of the models, with other V.

        Returns:
            The tensors with rows for all tokens. Tensors that do not have one row per token are returned unchanged.
        """
        if not self._has_rows(name):
            return base, [*models]
        first, extended = self.tokens.first, self.tokens.extended
        new = torch.stack([models[index][first:] for index in extended]).mean(0)
        return torch.cat([base[:first], new]), [
            model if index in extended else torch.cat([model[:first], new]) for index, model in enumerate(models)
        ]

    def _has_rows(self, name: str) -> bool:
        return self.names.first(name) in self.names.by_token


def _with_rows(shapes: Shapes, rows: Mapping[str, int]) -> Shapes:
    return {name: (rows[name], *shape[1:]) if name in rows else shape for name, shape in shapes.items()}


TOO_LARGE = "lower merge.shares or merge.weights, or store the base in fp32, which can store larger numbers than fp16"
"""Advice to the user if merged weights exceed the largest number of the base's data type."""


def merge_models(
    merging: Merging,
    base: Path,
    models: Sequence[tuple[Path, Weights]],
    targets: Mapping[float, Path],
    trust_remote_code: bool = False,
    tokens: NewTokens | None = None,
) -> int:
    """Writes the weights of the merged models. Files and tensors have the same names and order as in the base's folder.

    Integer and boolean tensors are copied from the base. Parts that only the base has and that no language model needs,
    such as a pooler, are copied as well.

    Args:
        merging: the options of the merge.
        base: folder of the base.
        models: for each model, its folder (for messages) and its weights.
        targets: target folder of each share.
        trust_remote_code: whether code that comes with the base may run. The code is needed if names or tokens differ.
        tokens: tokens that some models have and the base lacks. The module's docstring explains their rows.

    Returns:
        The number of tensors that were merged.

    Raises:
        ModelError: the tensors of a model do not match the base (nothing is written in this case), or a stored or
            merged tensor has values that are not finite.
    """
    merger, names = MERGERS.load(merging.kind)(merging), Names(base, trust_remote_code)
    rows = NewRows(tokens, names) if tokens else None
    with stored_weights(base) as stored:
        shapes = [stored.shapes, *(weights.shapes for _, weights in models)]
        shapes = rows.shapes(shapes[0], shapes[1:]) if rows else shapes
        pairs = [
            same_tensors(shapes[0], own, names, folder, weights.read)
            for own, (folder, weights) in zip(shapes[1:], models, strict=True)
        ]
        folders = [str(folder) for folder in (base, *(folder for folder, _ in models))]
        sources = _Sources(stored, [weights for _, weights in models], pairs, rows, folders)
        forms = {name: form for header in stored.headers.values() for name, form in header.items()}
        floats = (name for name, form in forms.items() if form["dtype"] in FLOATS)
        chosen = [name for name in floats if all(name in pair for pair in pairs)]
        merger.look(lambda: (sources.read(name) for name in chosen))
        for file in stored.headers:
            _write_file(file, merger, sources, {*chosen}, targets, names, shapes[0])
        if (base / locate.INDEX).is_file():
            grown = sum(size_of(form, shapes[0][name]) - size_of(form, form["shape"]) for name, form in forms.items())
            for folder in targets.values():
                write_index(base / locate.INDEX, folder / locate.INDEX, grown)
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
    """Names of tensors whose values were already checked to be finite. Some merge methods read a tensor twice, and the
    check should run once."""

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
                safeguards.check_finite(tensor, own, folder)
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
                safeguards.check_finite(original, name, sources.folders[0])
            for share, written in opened.items():
                merged = route(share).to(original.dtype) if route else original
                if route:
                    safeguards.check_finite(merged, name, f"the merged model at share {share:g}", TOO_LARGE)
                write_tensor(written, merged)

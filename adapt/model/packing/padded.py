"""Runs the documents of a packed sequence as rows, for models whose attention cannot keep packed documents isolated.

Callers pass packed sequences to every model. In a model that does not support packed documents, two hooks of the base
model copy the documents to rectangles (batches of rows), and copy the outputs back to the order of the packed
sequence. So the head, objectives and methods find the states at the same positions as with any other model, and the
head still runs once, only at the predicted positions.

Some encoders, such as DeBERTa's, accept a mask for each pair of tokens. Their rows have several documents, which do not
see each other. This works because such encoders only use relative positions. All rows have the same length.

In other models, each document is a padded row, and documents of similar lengths share a rectangle. The division into
rectangles minimizes the cost of padding plus the fixed costs of all passes. It depends only on the lengths of the
documents.
"""

import inspect
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from adapt.model.architecture import WHY, Way, first_position
from adapt.model.packing.attention import taken_back
from adapt.model.packing.packed import Documents, Layout, Packed, arrange, arrange_shared
from adapt.support.errors import ModelError

ATTRIBUTE = "_document_rows"
ROW_TOKENS = 128
"""Length of rows with several documents, if no document is longer [tokens]. In DeBERTa, each row has a fixed cost, and
attention in longer rows costs more."""
PASS_TOKENS = {"cpu": 384, "cuda": 4096}
"""Fixed cost of a pass, keyed by device. It is given as the number of tokens that take the same time to compute."""
_REPLACED = ("input_ids", "attention_mask", "position_ids", "token_type_ids", "cache_position", "documents")
"""Arguments of a base model that must be replaced, because they depend on the layout of the documents."""


@dataclass(frozen=True)
class Padding:
    """The cost of computing documents as rows."""

    share: float
    """Share of the computed positions that are padding."""
    passes: float
    """Mean number of passes through the layers per packed sequence."""

    def __str__(self) -> str:
        return f"{self.share:.1%} of the computed positions are padding, in {self.passes:.1f} passes per micro-batch"


class DocumentRows:
    """The hooks by which a base model runs documents as rows."""

    def __init__(self) -> None:
        self.way: Way = "padded"
        """How the model accepts documents. For `by length`, a pass has documents of one length, because padding
        would change the model's outputs."""
        self.filling: int | None = None
        """Token id at padding positions. None means the padding token in the model's config, or 0 if it has none."""
        self._at_once = False
        self._documents: Documents | None = None
        self._layout: Layout | None = None
        self._inputs: list[dict[str, Tensor]] = []

    def compute_at_once(self) -> None:
        """Computes all rows of a micro-batch in one pass, because ranks must run the same layers at ZeRO stage 3.

        Raises:
            ModelError: padding would change the model's outputs.
        """
        if self.way == "by length":
            raise ModelError(
                f"{WHY[self.way]}, which is impossible at ZeRO stage 3", "set resources.zero_stage to 0, 1 or 2"
            )
        self._at_once = True

    def layout(self, documents: Documents) -> Layout:
        """Divides documents into rectangles (batches of rows). Returns a layout with one bucket per rectangle."""
        lengths = documents.known.diff()
        if self.way == "shared rows":
            return arrange_shared(documents.known, shared_rows(lengths.tolist()), documents.device)
        cost = 0 if self.way == "by length" else PASS_TOKENS[documents.device.type]
        groups = [torch.arange(len(lengths))] if self._at_once else rectangles(lengths, cost)
        return arrange(documents.known, groups, documents.device)

    def padding(self, sequences: Iterable[Documents]) -> Padding:
        """Computes how much padding and how many passes these packed sequences need."""
        layouts = [self.layout(documents) for documents in sequences]
        slots = sum(len(layout.there) for layout in layouts)
        tokens = sum(len(layout.back) for layout in layouts)
        passes = sum(len(layout.buckets) for layout in layouts)
        return Padding(1 - tokens / max(slots, 1), passes / max(len(layouts), 1))

    @contextmanager
    def of(self, documents: Documents) -> Iterator[None]:
        """Returns a context manager inside which the base model computes a packed sequence with these documents."""
        self._documents = documents
        try:
            yield
        finally:
            self._documents = self._layout = None
            self._inputs = []

    def enter(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Replaces the packed sequence in the arguments with the first batch of rows, as a forward pre-hook."""
        if self._documents is None:
            return None
        names = inspect.signature(module.forward).parameters
        given = dict(zip(names, arguments, strict=False)) | options
        self._layout = self.layout(self._documents)
        filling = _padding_id(module.config) if self.filling is None else self.filling
        self._inputs = _inputs(self._layout, given, "attention_mask" in names, filling)
        if "position_ids" in names and (places := self._layout.buckets[0].positions) is not None:
            self._inputs[0]["position_ids"] = places + first_position(module.config)
        for name in _REPLACED:
            given.pop(name, None)
        return (), {**given, **self._inputs[0]}

    def keep_pairs_apart(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Replaces the encoder's mask with a mask for each pair of tokens of a row, as a forward pre-hook."""
        owners = self._layout.buckets[0].owners if self._layout else None
        if owners is None:
            return None
        names = inspect.signature(module.forward).parameters
        given = dict(zip(names, arguments, strict=False)) | options
        # padding sees padding, because softmax over no token gives NaN in some precisions
        return (), {**given, "attention_mask": owners[:, :, None] == owners[:, None, :]}

    def leave(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
        """Runs all batches of rows but the first, which the module's own call has run. This is a forward hook.

        Returns:
            The states of all tokens in packed order, [1, N, H].
        """
        if self._layout is None:
            return output
        outputs = [output, *(module.forward(**{**_without(options), **inputs}) for inputs in self._inputs[1:])]
        if isinstance(output, tuple):
            return (self._joined([part[0] for part in outputs]), *output[1:])
        output.last_hidden_state = self._joined([part.last_hidden_state for part in outputs])
        if output.get("hidden_states") is not None:
            layers = zip(*(part.hidden_states for part in outputs), strict=True)
            output.hidden_states = tuple(self._joined(list(layer)) for layer in layers)
        return output

    def _joined(self, parts: list[Tensor]) -> Tensor:
        assert self._layout
        return taken_back(torch.cat([states.flatten(0, 1) for states in parts]), self._layout)[None]


def _without(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _REPLACED}


def _inputs(layout: Layout, given: Mapping[str, Any], takes_mask: bool, padding: int) -> list[dict[str, Tensor]]:
    """Returns the arguments of the base model for each rectangle (batch of rows)."""
    sizes = [bucket.rows * bucket.length for bucket in layout.buckets]
    inputs: list[dict[str, Tensor]] = [{} for _ in sizes]
    for name, filling in (("input_ids", padding), ("token_type_ids", 0)):
        if given.get(name) is None:
            continue
        placed = given[name][0].index_select(0, layout.there)
        if layout.filling is not None:
            placed.index_fill_(0, layout.filling, filling)
        for rows, bucket, part in zip(inputs, layout.buckets, placed.split(sizes), strict=True):
            rows[name] = part.unflatten(0, (bucket.rows, bucket.length))
    for rows, bucket in zip(inputs, layout.buckets, strict=True):
        if takes_mask and bucket.real is not None:
            rows["attention_mask"] = bucket.real.long()
    return inputs


def _padding_id(config: Any) -> int:
    text = config.get_text_config()
    padding = getattr(text, "pad_token_id", None)
    return padding if isinstance(padding, int) and 0 <= padding < text.vocab_size else 0


def rectangles(lengths: Tensor, cost: int) -> list[Tensor]:
    """Divides documents into groups of similar lengths such that the total cost of padding and passes is minimal.

    The cost of a group is D L + `cost`, where D is the number of its documents and L the length of the longest. Dynamic
    programming over the sorted distinct lengths finds the best division.

    Args:
        lengths: lengths of the documents [tokens], int64 [documents].
        cost: cost of a pass [tokens]. With 0, only documents of exactly the same length share a group.

    Returns:
        The numbers of the documents of each group. Groups of short documents come first.
    """
    sizes, owner, counts = lengths.unique(return_inverse=True, return_counts=True)
    before = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    best, begins = torch.zeros(len(sizes) + 1, dtype=torch.int64), []
    for end in range(1, len(sizes) + 1):
        costs = best[:end] + (before[end] - before[:end]) * sizes[end - 1] + cost
        begins.append(int(costs.argmin()))
        best[end] = costs[begins[-1]]
    groups, end = [], len(sizes)
    while end:
        begin = begins[end - 1]
        groups.append(((owner >= begin) & (owner < end)).nonzero().flatten())
        end = begin
    return groups[::-1]


def shared_rows(lengths: Sequence[int]) -> list[list[int]]:
    """Packs documents of these lengths [tokens] into few rows of equal length.

    The longest documents come first. Each gets the fullest row with enough space.

    Returns:
        The numbers of the documents in each row. A row has at most ROW_TOKENS tokens, or, if the longest document has
        more tokens, at most the number of tokens of that document.
    """
    length = max(ROW_TOKENS, *lengths)
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # (free space [tokens], index of row), sorted
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        place = bisect_left(open_rows, (lengths[number], 0))
        room, row = open_rows.pop(place) if place < len(open_rows) else (length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(number)
        insort(open_rows, (room - lengths[number], row))
    return rows


def padding_of(passes: Iterable[Sequence[int]], way: Way, device: str, at_once: bool = False) -> Padding:
    """Computes how much padding and how many passes documents need, without a model.

    Args:
        passes: lengths of the documents of each micro-batch [tokens].
        way: how the model computes documents as rows.
        device: type of the device, `cpu` or `cuda`, which determines the fixed cost of a pass.
        at_once: whether all documents of a micro-batch run in one batch of rows, as at ZeRO stage 3.
    """
    cost = 0 if way == "by length" else PASS_TOKENS[device]
    slots = tokens = rectangles_needed = count = 0
    for documents in passes:
        if way == "shared rows":
            filled = [sum(documents[number] for number in row) for row in shared_rows(documents)]
            slots, tokens = slots + len(filled) * max(filled), tokens + sum(filled)
            rectangles_needed, count = rectangles_needed + 1, count + 1
            continue
        lengths = torch.tensor(documents)
        groups = [torch.arange(len(lengths))] if at_once else rectangles(lengths, cost)
        slots += sum(len(group) * int(lengths[group].max()) for group in groups)
        tokens += int(lengths.sum())
        rectangles_needed += len(groups)
        count += 1
    return Padding(1 - tokens / max(slots, 1), rectangles_needed / max(count, 1))


def run_as_rows(model: Any) -> DocumentRows:
    """Changes a model in place so that it runs documents as rows, and returns its hooks."""
    base, rows = trunk_of(model), DocumentRows()
    if _takes_pairs(base):
        base.encoder.register_forward_pre_hook(rows.keep_pairs_apart, with_kwargs=True)
    base.register_forward_pre_hook(rows.enter, with_kwargs=True)
    base.register_forward_hook(rows.leave, with_kwargs=True, prepend=True)  # first, so other hooks see packed states
    setattr(base, ATTRIBUTE, rows)
    return rows


def _takes_pairs(base: Any) -> bool:
    """Returns whether the encoder of a base model accepts a mask for each pair of tokens, [rows, length, length]."""
    return callable(getattr(getattr(base, "encoder", None), "get_attention_mask", None))


def possible_ways(model: Any) -> list[Way]:
    """Returns the ways in which a model may be able to compute documents as rows, the fastest first."""
    return ["shared rows", "padded", "by length"] if _takes_pairs(trunk_of(model)) else ["padded", "by length"]


def document_rows(model: Any) -> DocumentRows | None:
    """Returns the hooks that make a model run documents as rows. None if the model supports packed documents."""
    return getattr(trunk_of(model), ATTRIBUTE, None)


def every_document_rows(model: Any) -> list[DocumentRows]:
    """Returns the hooks of all parts of a model that run documents as rows, such as a generator and a discriminator."""
    return [rows for module in model.modules() if (rows := getattr(module, ATTRIBUTE, None))]


def trunk_of(model: Any) -> Any:
    """Returns the module that turns tokens into hidden states, which is `base_model` in most architectures.

    In Llama 4, `base_model` is the whole model. In OPT and the decoders of translation models, a part of `base_model`
    computes the states.
    """
    base = getattr(model, "base_model", model)
    if base is model and isinstance(getattr(model, "model", None), PreTrainedModel):
        base = model.model
    decoder = getattr(base, "decoder", None)
    return decoder if isinstance(decoder, PreTrainedModel) else base


@contextmanager
def document_inputs(model: Any, packed: Packed) -> Iterator[dict[str, Any]]:
    """Returns a context manager with the arguments for calling a model on a packed sequence.

    Args:
        model: a model from `adapt.model.load`, or its `base_model`, without a wrapper.
        packed: a sequence of N tokens.
    """
    if rows := document_rows(model):
        with rows.of(packed.documents):
            yield {"input_ids": packed.input_ids}
        return
    yield {
        "input_ids": packed.input_ids,
        "position_ids": packed.position_ids + first_position(model.config),
        "documents": packed.documents,
        # a mask with four dimensions keeps transformers from building one; attention only uses `documents`
        "attention_mask": torch.zeros(1, 1, 1, 1, device=packed.input_ids.device),
    }

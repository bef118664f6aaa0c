"""Packs documents into one sequence without padding, and stores the boundaries of the documents.

All indices are computed on the host and then sent to the device, so that the host never waits for the device.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

CPU = torch.device("cpu")
ROUNDING = 16
"""Documents whose lengths round up to the same multiple of this number share an attention call [tokens]."""


@dataclass(frozen=True)
class Bucket:
    """Rows of equal length that a model processes together. A row has one document, or several if `owners` is set."""

    rows: int
    length: int
    """Number of slots per row, which is the length of the longest row [tokens]."""
    real: Tensor | None
    """Whether each slot has a token instead of padding, bool [rows, length]. None if there is no padding."""
    owners: Tensor | None = None
    """Index of each slot's document, -1 for padding, int64 [rows, length]. None if each row has one document."""
    positions: Tensor | None = None
    """Position of the token in its document for each slot, int64 [rows, length]. None if each row has one document."""


@dataclass(frozen=True)
class Layout:
    """Describes how the N tokens of a packed sequence are copied to buckets, which have P >= N slots in total."""

    buckets: list[Bucket]
    there: Tensor
    """Index of the token in each slot of the buckets, int64 [P]. Padding slots have the index of an arbitrary token."""
    back: Tensor
    """Slot of each token in the buckets, int64 [N]."""
    filling: Tensor | None
    """Slots of padding in the buckets, int64; None if there is no padding."""


@dataclass(frozen=True)
class Prolonged:
    """The layout of a sequence in which the same vectors (a prompt or prefix) are inserted before each document."""

    order: Tensor
    """For each position of the new sequence, an index into the concatenation of inserted vectors and tokens, int64."""
    tokens: Tensor
    """Index of each token in the new sequence, int64 [N]."""
    documents: "Documents"
    """Boundaries of the documents in the new sequence, including the inserted vectors."""


class Documents:
    """The boundaries of the documents of a packed sequence.

    Args:
        cumulative: where documents begin, followed by the length of the sequence, int32 [D + 1].
        longest: upper bound of the documents' lengths [tokens].
        device: device of the sequence.
    """

    causal = False
    """Whether each token only sees earlier tokens of its document, even in an encoder."""

    def __init__(self, cumulative: Tensor, longest: int, device: torch.device = CPU) -> None:
        self.known = cumulative.cpu()
        """Where documents begin (`cumulative`), on the host."""
        self.longest = longest
        self.device = device
        self._prolonged: dict[int, Prolonged] = {}

    def __len__(self) -> int:
        return len(self.known) - 1

    def to(self, device: torch.device) -> "Documents":
        """Returns the same boundaries for a sequence on another device."""
        return self if device == self.device else type(self)(self.known, self.longest, device)

    def prolonged(self, length: int) -> Prolonged:
        """Returns the layout with `length` vectors inserted before each document."""
        if length not in self._prolonged:
            ends, count = self.known.long(), len(self)
            owner = torch.arange(count).repeat_interleave(ends.diff())
            tokens = torch.arange(int(ends[-1])) + length * (owner + 1)
            begins = ends[:-1] + length * torch.arange(count)
            order = torch.empty(len(tokens) + count * length, dtype=torch.int64)
            order[(begins[:, None] + torch.arange(length)).flatten()] = torch.arange(length).repeat(count)
            order[tokens] = torch.arange(len(tokens)) + length
            known = (ends + length * torch.arange(count + 1)).int()
            longer = Documents(known, self.longest + length, self.device)
            self._prolonged[length] = Prolonged(sent(order, self.device), sent(tokens, self.device), longer)
        return self._prolonged[length]

    @cached_property
    def cumulative(self) -> Tensor:
        """Where documents begin, followed by the length of the sequence, int32 [D + 1], on the device."""
        return sent(self.known, self.device)

    @cached_property
    def layout(self) -> Layout:
        """Buckets of documents of about the same length, for attention. Buckets of short documents come first."""
        lengths = self.known.diff().long()
        rounded = (lengths + ROUNDING - 1) // ROUNDING * ROUNDING
        groups = ((rounded == size).nonzero().flatten() for size in rounded.unique().tolist())
        return arrange(self.known, groups, self.device)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Sends a tensor from the host to a device, without waiting for the device."""
    pinned = device.type == "cuda" and values.device.type == "cpu"
    return values.pin_memory().to(device, non_blocking=True) if pinned else values.to(device)


def arrange(cumulative: Tensor, groups: Iterable[Tensor], device: torch.device) -> Layout:
    """Lays out documents in buckets.

    Args:
        cumulative: where documents begin, followed by the length of the sequence, int32 [D + 1], on the host.
        groups: numbers of the documents in each bucket, int64.
        device: device of the sequence.
    """
    begins, ends = cumulative[:-1].long(), cumulative[1:].long()
    lengths = ends - begins
    buckets, there, real = [], [], []
    for members in groups:
        longest = int(lengths[members].max())
        inside = torch.arange(longest) < lengths[members, None]
        indices = (begins[members, None] + torch.arange(longest)).where(inside, 0)
        full = bool(inside.all())
        buckets.append(Bucket(len(members), longest, None if full else sent(inside, device)))
        there.append(indices.flatten())
        real.append(inside.flatten())
    tokens, occupied = torch.cat(there), torch.cat(real)
    back = torch.empty(int(cumulative[-1]), dtype=torch.int64)
    back[tokens[occupied]] = occupied.nonzero().flatten()
    filling = None if bool(occupied.all()) else sent((~occupied).nonzero().flatten(), device)
    return Layout(buckets, sent(tokens, device), sent(back, device), filling)


@dataclass(frozen=True)
class Packed:
    """Documents packed into one sequence of N tokens."""

    input_ids: Tensor
    """Token ids, int64 [1, N]."""
    position_ids: Tensor
    """Position of each token in its document, from 0, int64 [1, N]."""
    documents: Documents

    @property
    def tokens(self) -> int:
        """Number of tokens N."""
        return self.input_ids.shape[1]

    @classmethod
    def of(cls, input_ids: Tensor, real: Tensor, starts: Tensor) -> "Packed":
        """Packs rows without their padding, on the host.

        Args:
            input_ids: token ids, int64 [B, L].
            real: False at padding, bool [B, L].
            starts: True where a document starts, bool [B, L]; always True at the first token of a row.
        """
        tokens = input_ids[real]
        begins = starts[real].nonzero().flatten()
        index = torch.arange(len(tokens))
        document = torch.bucketize(index, begins, right=True) - 1
        cumulative = torch.cat((begins, torch.tensor([len(tokens)]))).int()
        return cls(tokens[None], (index - begins[document])[None], Documents(cumulative, input_ids.shape[1]))

    def to(self, device: torch.device) -> "Packed":
        """Sends the sequence to another device."""
        return Packed(sent(self.input_ids, device), sent(self.position_ids, device), self.documents.to(device))

    @classmethod
    def joined(cls, *parts: "Packed") -> "Packed":
        """Joins the documents of several packed sequences into one sequence."""
        first = parts[0].documents
        ends, begin = [first.known[:1]], 0
        for part in parts:
            ends.append(part.documents.known[1:] + begin)
            begin += part.tokens
        return cls(
            torch.cat([part.input_ids for part in parts], 1),
            torch.cat([part.position_ids for part in parts], 1),
            Documents(torch.cat(ends), max(part.documents.longest for part in parts), first.device),
        )

    def only(self, numbers: Tensor) -> "Packed":
        """Returns a sequence with some of the documents.

        Args:
            numbers: numbers of the documents to select, in rising order, int64 [documents], on the host.
        """
        if len(numbers) == len(self.documents):
            return self
        documents = self.documents
        lengths = documents.known.diff()
        selected = torch.zeros(len(lengths), dtype=torch.bool).index_fill_(0, numbers, True)
        inside = sent(selected.repeat_interleave(lengths).nonzero().flatten(), documents.device)
        cumulative = torch.cat((lengths.new_zeros(1), lengths[numbers].cumsum(0))).int()
        return Packed(
            self.input_ids.index_select(1, inside),
            self.position_ids.index_select(1, inside),
            Documents(cumulative, documents.longest, documents.device),
        )

    @classmethod
    def single(cls, tokens: Tensor) -> "Packed":
        """Packs one document with token ids `tokens`, int64 [N]. The result is on the device of `tokens`."""
        text = tokens.cpu()[None]
        real = torch.ones_like(text, dtype=torch.bool)
        return cls.of(text, real, torch.arange(len(tokens))[None] == 0).to(tokens.device)


def arrange_shared(cumulative: Tensor, rows: Sequence[Sequence[int]], device: torch.device) -> Layout:
    """Lays out documents in one bucket, with several documents per row.

    Args:
        cumulative: index of the first token of each document, then the sequence's length, int32 [D + 1], on the host.
        rows: indices of the documents in each row.
        device: device of the sequence.
    """
    begins, sizes = cumulative[:-1].long(), cumulative.long().diff()
    order = torch.tensor([number for row in rows for number in row])
    filled = torch.tensor([int(sizes[list(row)].sum()) for row in rows])
    ordered = sizes[order]
    positions = torch.arange(int(cumulative[-1])) - (ordered.cumsum(0) - ordered).repeat_interleave(ordered)
    tokens = begins[order].repeat_interleave(ordered) + positions
    inside = torch.arange(int(filled.max())) < filled[:, None]
    there, owners, places = (torch.full(inside.shape, value) for value in (0, -1, 0))
    there[inside], owners[inside], places[inside] = tokens, order.repeat_interleave(ordered), positions
    back = torch.empty(len(tokens), dtype=torch.int64)
    back[tokens] = inside.flatten().nonzero().flatten()
    full = bool(inside.all())
    real = None if full else sent(inside, device)
    bucket = Bucket(len(rows), inside.shape[1], real, sent(owners, device), sent(places, device))
    filling = None if full else sent((~inside).flatten().nonzero().flatten(), device)
    return Layout([bucket], sent(there.flatten(), device), sent(back, device), filling)

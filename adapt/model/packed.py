"""Documents one after another in a single sequence, without padding, and where each begins and ends."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

ROUNDING = 16
"""On CPUs, documents whose lengths round up to the same multiple are attended to together [tokens]."""


@dataclass(frozen=True)
class Bucket:
    """Documents of about one length, as a rectangle."""

    documents: int
    length: int
    """Number of places for each document: the tokens of the longest one."""
    real: Tensor | None
    """bool [documents, length], False at padding; None if all documents have that length."""


class Documents:
    """The boundaries of the documents of a packed sequence.

    Args:
        cumulative: int32 [D + 1]: where documents begin, and the sequence's length at the end.
        longest: upper bound of their lengths [tokens].
    """

    def __init__(self, cumulative: Tensor, longest: int) -> None:
        self.cumulative = cumulative
        self.longest = longest

    def __len__(self) -> int:
        return len(self.cumulative) - 1

    @cached_property
    def _layout(self) -> tuple[list[Bucket], Tensor, Tensor, Tensor | None]:
        return _arrange(self.cumulative)

    @property
    def buckets(self) -> list[Bucket]:
        """The documents by length, short ones first."""
        return self._layout[0]

    @property
    def there(self) -> Tensor:
        """int64 [P], P >= N: the token at each place of the buckets; at filling, some token of the sequence."""
        return self._layout[1]

    @property
    def back(self) -> Tensor:
        """int64 [N]: the place of each token in the buckets."""
        return self._layout[2]

    @property
    def filling(self) -> Tensor | None:
        """int64: places that hold no token; None where there are none."""
        return self._layout[3]


def _arrange(cumulative: Tensor) -> tuple[list[Bucket], Tensor, Tensor, Tensor | None]:
    device = cumulative.device
    begins, ends = cumulative[:-1].long().cpu(), cumulative[1:].long().cpu()
    lengths = ends - begins
    rounded = (lengths + ROUNDING - 1) // ROUNDING * ROUNDING
    buckets, there, real = [], [], []
    for size in rounded.unique().tolist():
        members = (rounded == size).nonzero().flatten()
        longest = int(lengths[members].max())
        inside = torch.arange(longest) < lengths[members, None]
        places = (begins[members, None] + torch.arange(longest)).where(inside, 0)
        full = bool(inside.all())
        buckets.append(Bucket(len(members), longest, None if full else inside.to(device)))
        there.append(places.flatten())
        real.append(inside.flatten())
    tokens, occupied = torch.cat(there), torch.cat(real)
    back = torch.empty(int(cumulative[-1]), dtype=torch.int64)
    back[tokens[occupied]] = occupied.nonzero().flatten()
    filling = None if bool(occupied.all()) else (~occupied).nonzero().flatten().to(device)
    return buckets, tokens.to(device), back.to(device), filling


@dataclass(frozen=True)
class Packed:
    """The text of some rows as one sequence of N tokens."""

    input_ids: Tensor
    """int64 [1, N]."""
    position_ids: Tensor
    """int64 [1, N]: place of each token in its document, from 0."""
    documents: Documents

    @property
    def tokens(self) -> int:
        """N."""
        return self.input_ids.shape[1]

    @classmethod
    def of(cls, input_ids: Tensor, real: Tensor, starts: Tensor) -> "Packed":
        """Rows without their filling.

        Args:
            input_ids: int64 [B, L].
            real: bool [B, L], False at filling.
            starts: bool [B, L], True where a document starts; always at the first place of a row.
        """
        tokens = input_ids[real]
        begins = starts[real].nonzero().flatten()
        index = torch.arange(len(tokens), device=tokens.device)
        document = torch.bucketize(index, begins, right=True) - 1
        cumulative = torch.cat((begins, torch.tensor([len(tokens)], device=tokens.device))).int()
        return cls(tokens[None], (index - begins[document])[None], Documents(cumulative, input_ids.shape[1]))

    @classmethod
    def joined(cls, *parts: "Packed") -> "Packed":
        """The documents of some packed sequences one after another, in one; none sees those of another part."""
        ends, begin = [parts[0].documents.cumulative[:1]], 0
        for part in parts:
            ends.append(part.documents.cumulative[1:] + begin)
            begin += part.tokens
        return cls(
            torch.cat([part.input_ids for part in parts], 1),
            torch.cat([part.position_ids for part in parts], 1),
            Documents(torch.cat(ends), max(part.documents.longest for part in parts)),
        )

    def only(self, numbers: Tensor) -> "Packed":
        """Some documents alone, by their numbers in rising order, int64 [documents]."""
        if len(numbers) == len(self.documents):
            return self
        lengths = self.documents.cumulative.diff()
        kept = torch.zeros(len(lengths), dtype=torch.bool, device=lengths.device).index_fill_(0, numbers, True)
        inside = kept.repeat_interleave(lengths, output_size=self.tokens)
        cumulative = torch.cat((lengths.new_zeros(1), lengths[numbers].cumsum(0))).int()
        return Packed(
            self.input_ids[:, inside], self.position_ids[:, inside], Documents(cumulative, self.documents.longest)
        )

    @classmethod
    def single(cls, tokens: Tensor) -> "Packed":
        """One document, int64 [N]."""
        whole = torch.ones_like(tokens, dtype=torch.bool)[None]
        return cls.of(tokens[None], whole, torch.arange(len(tokens), device=tokens.device)[None] == 0)

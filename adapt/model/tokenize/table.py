"""The tokens of pieces that came before, so that the library sees each once. Its memory is bounded."""

from collections.abc import Callable, Sequence

import numpy as np

from adapt.model.tokenize.ragged import Ragged

MOST = 2**19
"""Pieces that are kept: some 130 MB of a process, when full."""
LONGEST = 96
"""Bytes of a piece that is kept, as UTF-8. Longer ones hardly come again."""


class PieceTable:
    """Numbers for pieces, and their tokens by number.

    Args:
        encode: gives the tokens of pieces.
        fixed: lists that have the first numbers, for good.
        most: pieces that are kept.
    """

    def __init__(self, encode: Callable[[list[str]], Ragged], fixed: Ragged, most: int = MOST) -> None:
        self._encode, self._most = encode, most
        self._numbers: dict[bytes, int] = {}
        self._tokens = fixed
        self._fixed = len(fixed.bounds) - 1
        self._uses = np.zeros(self._fixed, np.int32)
        """In how many batches each piece came, of late."""

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, pieces: list[bytes]) -> np.ndarray:
        """The number of each of the pieces, which are different ones. It holds until the next call."""
        if len(self._numbers) > self._most:
            self._forget()
        found = list(map(self._numbers.get, pieces))
        if None in found:
            new = [piece for piece, number in zip(pieces, found, strict=True) if number is None]
            self._add(new)
            found = list(map(self._numbers.__getitem__, pieces))
        numbers = np.array(found, np.int64)
        self._uses[numbers] += 1
        return numbers

    def tokens(self, numbers: np.ndarray) -> Ragged:
        """The tokens of pieces by their numbers."""
        return self._tokens.take(numbers)

    def _add(self, pieces: Sequence[bytes]) -> None:
        first = len(self._tokens.bounds) - 1
        self._tokens = Ragged.joined([self._tokens, self._encode([piece.decode() for piece in pieces])])
        self._numbers.update(zip(pieces, range(first, first + len(pieces)), strict=True))
        self._uses = np.concatenate([self._uses, np.zeros(len(pieces), np.int32)])

    def _forget(self) -> None:
        """Keeps those that came most often, half as many as may be, and of those that came as often the newest."""
        kept = [piece for piece in self._numbers if len(piece) <= LONGEST]
        numbers = np.fromiter(map(self._numbers.__getitem__, kept), np.int64, len(kept))
        order = np.argsort(self._uses[numbers], kind="stable")[-(self._most // 2) :]
        self._numbers = {kept[place]: self._fixed + rank for rank, place in enumerate(order.tolist())}
        chosen = np.concatenate([np.arange(self._fixed), numbers[order]])
        self._tokens, self._uses = self._tokens.take(chosen), self._uses[chosen] // 2

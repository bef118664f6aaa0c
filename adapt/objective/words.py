"""Whole-word masking: a word is predicted with all its tokens or not at all (Devlin's update of BERT, May 2019)."""

from torch import Tensor

from adapt.objective.base import Batch
from adapt.objective.masking import Masking
from adapt.objective.units import heads_of
from adapt.schema import WORD_STARTS


class WholeWordMasking(Masking):
    """Predicts whole words, each of whose tokens is masked, replaced or kept by itself, as BERT does.

    A word that is cut by the end of a row counts as two, since a row knows nothing of the others.
    """

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Words are units."""
        return heads_of(batch.marks[WORD_STARTS] | batch.starts)

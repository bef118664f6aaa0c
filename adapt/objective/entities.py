"""Entity masking (ERNIE, Sun et al., arXiv 1904.09223): names of things are predicted whole, beside whole words."""

import torch
from torch import Tensor

from adapt.objective.base import Batch
from adapt.objective.masking import CROSSING, ORDER, WORD_CROSSING, Masking
from adapt.objective.units import at_least_one, heads_of, take_units, unit_lengths
from adapt.schema import ENTITIES, UNIT_STARTS


class EntityMasking(Masking):
    """Predicts entities and words: `entity_fraction` of the predicted tokens from entities, as far as there are any.

    Words fill up, and entities where words are too few. An entity that is cut by the end of a row counts as two.
    """

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Entities and the words outside of them are units."""
        return heads_of(batch.marks[UNIT_STARTS] | batch.starts)

    def choose(self, batch: Batch, eligible: Tensor, heads: Tensor) -> Tensor:
        """Takes the right number of units from the entities and from the words."""
        order, size = self.draw(ORDER, batch), unit_lengths(heads, eligible)
        is_entity = batch.marks[ENTITIES]
        in_entities, in_words = size.where(is_entity, 0), size.where(~is_entity, 0)
        wanted = self.budget(eligible)
        due = torch.minimum(wanted * self.config.entity_fraction, in_entities.sum(1))
        from_words = torch.minimum(wanted - due, in_words.sum(1))
        taken = take_units(order, in_entities, wanted - from_words, self.draw(CROSSING, batch)[:, 0])
        taken |= take_units(order, in_words, from_words, self.draw(WORD_CROSSING, batch)[:, 0])
        return at_least_one(taken, order, size).gather(1, heads) & eligible

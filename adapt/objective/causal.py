"""Causal language modelling (Radford et al. 2018): predict each token from those before it in its document."""

from adapt.objective.base import Batch, Corrupted, Objective


class CausalLanguageModelling(Objective):
    """Predicts the next token. Nothing is hidden, since the model sees to the left only.

    A document's first token is not predicted, since nothing comes before it; nor is a row's, whose context is in
    another row.
    """

    def corrupt(self, batch: Batch) -> Corrupted:
        """Asks for the next token wherever it belongs to the same document."""
        goes_on = batch.real & ~batch.starts
        positions = goes_on.roll(-1, dims=1)
        positions[:, -1] = False
        targets = batch.tokens.roll(-1, dims=1)[positions]
        return Corrupted(batch.tokens, batch.real, batch.starts, positions, targets)

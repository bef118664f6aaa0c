"""Soft masking: what past domains need moves less (DAS, arXiv 2302.03241, section 4.2).

The paper scales the *gradients* of a unit's parameters by 1 - I. Under Adam, whose step does not depend on the scale of
gradients, that hardly does anything. Target `update` scales the step itself. The optimizer trains V, from the weights
W0 on, and the model computes with W = W0 + (1 - I) (V - W0), whose gradient V gets as it is. So whatever step an
optimizer makes, weight decay included, W makes 1 - I of it. Gradient norm, clipping and the optimizer's state are
those of unmasked parameters. Where I is 0, W is V, bit for bit, and where it is 1, W0.

`gradient` is what the paper's code does, for comparison; the norm that clips is then that of the scaled gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from adapt.errors import ModelError
from adapt.method.base import Method, Setting
from adapt.model.layers.masked import Mask, Target, computed_with, mask_all
from adapt.model.layers.units import Values, by_parameter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SoftMask(Method):
    """Training that moves each parameter by 1 - I of its ordinary update.

    Args:
        importance: I in [0, 1] of every unit, for the parameters that make its output.
        target: what is scaled.
        embedding: I in [0, 1] of every token, fp32 [vocabulary], for its row of the embeddings; None leaves them free.
            Where the LM head has the same matrix, it is masked there, too.
    """

    def __init__(self, importance: Values, target: Target = "update", embedding: Tensor | None = None) -> None:
        super().__init__()
        self._importance = importance
        self._target = target
        self._embedding = embedding
        self._masks: dict[str, Mask] = {}

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Masks the model's parameters. Parameters that are wholly free stay as they are.

        Raises:
            ModelError: the embeddings have another number of rows than there are importances.
        """
        importance = {**by_parameter(model, self._importance), **self._rows(model)}
        self._masks = mask_all(model, importance, self._target)
        return model

    def _rows(self, model: nn.Module) -> dict[str, Tensor]:
        """Importance of the embeddings' rows, [vocabulary, 1], by the parameter's name."""
        if self._embedding is None:
            return {}
        table = model.get_input_embeddings().weight  # type: ignore[operator]
        if len(table) != len(self._embedding):
            raise ModelError(
                f"importance was measured for {len(self._embedding):,} tokens, and the model has embeddings for "
                f"{len(table):,}",
                "measure importance again on this model, or set das.embeddings to free",
            )
        (name,) = (name for name, parameter in model.named_parameters() if parameter is table)
        return {name: self._embedding[:, None]}

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """W in place of V."""
        return computed_with(state, self._masks)

"""How much a loss depends on every token's row of the input embeddings."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor


class TokenGradients:
    """Collects, over the passes of some rows, the gradients at the output of the input embeddings.

    There, and not at the weights: these may be tied to those of the LM head, whose gradient is dense, and would take a
    matrix of the vocabulary's size for every group.

    Args:
        model: whose weights get no gradients.
    """

    def __init__(self, model: Any) -> None:
        self._module = model.get_input_embeddings()
        self._vocabulary = len(self._module.weight)
        self._seen: list[tuple[Tensor, Tensor]] = []  # of each pass: token ids, embeddings
        self._keys: list[Tensor] = []
        self._gradients: list[Tensor] = []

    def __enter__(self) -> Self:
        self._hook = self._module.register_forward_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _keep(self, module: torch.nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        embeddings = output.detach().requires_grad_()
        self._seen.append((arguments[0], embeddings))
        return embeddings

    def taken(self, owner: Tensor) -> list[Tensor]:
        """The embeddings of the passes since the last call, for their gradients.

        Args:
            owner: int64 [N], the group of each token of a pass.
        """
        seen, self._seen = self._seen, []
        self._keys += [owner * self._vocabulary + ids.flatten() for ids, _ in seen]
        return [embeddings for _, embeddings in seen]

    def add(self, gradients: tuple[Tensor, ...]) -> None:
        """Keeps the gradients of what was `taken`."""
        self._gradients += [gradient.flatten(0, -2) for gradient in gradients]

    def sizes(self, share: Tensor) -> Tensor:
        """Forgets all gradients, and gives the norm of those of each token in each group, summed over groups.

        Args:
            share: [groups], what each group's gradients are divided by.

        Returns:
            float64 [vocabulary].
        """
        keys, rows = torch.cat(self._keys).unique(return_inverse=True)
        gradients = torch.cat(self._gradients).float()
        sums = gradients.new_zeros(len(keys), gradients.shape[1]).index_add(0, rows, gradients)
        norms = (sums.norm(dim=1) / share[keys // self._vocabulary]).double()
        self._keys, self._gradients = [], []
        sizes: Tensor = norms.new_zeros(self._vocabulary).index_add(0, keys % self._vocabulary, norms)
        return sizes

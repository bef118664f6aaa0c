"""Tables of which some rows stay as they are while the others learn."""

from __future__ import annotations

from torch import Tensor, nn

_HELD = "_has_held_rows"


def hold_rows(table: nn.Parameter, rows: int) -> None:
    """Trains a parameter but for its first rows.

    No gradient reaches them, and nothing decays in the parameter (`adapt.train.optimizer`). So AdamW leaves them where
    they are, bit for bit, at any ZeRO stage.

    Args:
        table: [V, ...], before an engine wraps its model.
        rows: how many stay.
    """

    def held(gradient: Tensor) -> Tensor:
        kept = gradient.clone()
        kept[:rows] = 0
        return kept

    table.requires_grad_(True)
    table.register_hook(held)
    setattr(table, _HELD, True)


def has_held_rows(parameter: Tensor) -> bool:
    """Whether `hold_rows` holds some of its rows."""
    return getattr(parameter, _HELD, False)

"""Prompts take positions of their own: whether sequences still have room beside them."""

from __future__ import annotations

from pathlib import Path

from adapt.config import Config
from adapt.errors import ConfigError
from adapt.model.additions.config import stored_additions
from adapt.model.limits import PROMPTS, max_sequence_length


def check_room(config: Config, model: Path, field: str, length: int) -> None:
    """Refuses prompts that leave too few positions.

    Args:
        config: of the job.
        model: folder of the model to begin with.
        field: of the configuration that says how long prompts are.
        length: of a prompt [vectors].

    Raises:
        ConfigError: names the field that is too long.
    """
    longest = max_sequence_length(model)
    if longest is None:
        return
    has_prompts = any(entry["kind"] == PROMPTS for entry in stored_additions(model))
    left = longest if has_prompts else longest - length
    if left <= 0:
        raise ConfigError(
            f"{field} is {length}, but the model takes {longest} tokens, text included",
            f"set {field} to {longest // 2} or less",
        )
    for section, wanted in (("training", config.training), ("evaluation", config.evaluation)):
        if wanted.sequence_length > left:
            vectors = "1 vector" if length == 1 else f"{length} vectors"
            raise ConfigError(
                f"{section}.sequence_length is {wanted.sequence_length}, but beside a prompt of {vectors} the model"
                f" takes {left} tokens",
                f"set {section}.sequence_length to {left} or less, or lower {field}",
            )

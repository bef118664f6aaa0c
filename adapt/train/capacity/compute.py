"""How many steps a limit of compute is."""

from dataclasses import replace
from math import ceil

from adapt.config import Config
from adapt.errors import ConfigError
from adapt.method.table import method_of
from adapt.model.size import ModelSize
from adapt.train.capacity.flops import training_flops, workload


def with_flops_as_steps(
    config: Config, size: ModelSize | None, document_length: float | None, is_known: bool = True
) -> Config:
    """The configuration with `training.max_flops` as a limit of steps, rounded up to whole ones.

    Steps must not depend on how the work is done, so what is computed twice to save memory does not count, and methods
    count as if a step were one pass.

    Args:
        config: of the training.
        size: of the model that is trained; None where it is not known.
        document_length: mean of the text [tokens]; None where it is not known: then documents fill their rows.
        is_known: whether there are stages of the method before it.

    Raises:
        ConfigError: the size of the model is not known.
    """
    training = config.training
    if not training.max_flops:
        return config
    if size is None:
        raise ConfigError(
            "training.max_flops is set, but config.json does not name the model's dimensions in a known way",
            "set training.max_steps or training.max_tokens",
        )
    added = method_of(config).added_passes(is_known)
    work = workload(config.objective, training.sequence_length, document_length, added)
    a_step = training_flops(size, work) * training.global_batch_size * training.sequence_length
    steps = max(1, ceil(training.max_flops / a_step))
    limits = replace(training, max_flops=None, max_steps=min(steps, training.max_steps or steps))
    return replace(config, training=limits)

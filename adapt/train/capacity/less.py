"""What a training can change to take less memory."""

from adapt.config import TrainingConfig, Workers
from adapt.train.schedule import smaller_micro_batch


def takes_less(training: TrainingConfig, workers: Workers, sequences: int) -> str:
    """What to change, in a sentence for people.

    Args:
        training: settings.
        workers: training processes.
        sequences: that passed a device at once when its memory ran out.
    """
    if sequences > 1:
        return f"set training.micro_batch to {smaller_micro_batch(training, workers, sequences)}"
    if not training.gradient_checkpointing:
        return "set training.gradient_checkpointing to true"
    return "raise resources.zero_stage, take more workers, or shorten training.sequence_length"

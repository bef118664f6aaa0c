"""The dimensions of the model that a stage begins with, as far as they can be said before it is made."""

from adapt.model.size import ModelSize, model_size
from adapt.model.start import Start
from adapt.runner import Done
from adapt.stage.vocabulary.extend import ExtendVocabulary
from adapt.stage.vocabulary.taught import TeachRows


def first_size(start: Start, done: Done) -> ModelSize | None:
    """The dimensions of the first model of the chain that has the tokens of this one; methods may make it grow later.

    A vocabulary that is still to be extended counts as it will be, but for an elbow, which nobody knows yet; one that
    is still to be trimmed or made, as the one before. None where dimensions cannot be told.

    Args:
        start: the model.
        done: the stages that have finished.
    """
    made = start.vocabulary
    if made is None or made in done:
        return model_size(start.with_tokenizer(done).model)
    extended = made.extended if isinstance(made, TeachRows) else made
    before = getattr(extended, "start", None)
    size = first_size(before, done) if before else None
    return extended.size_ahead(size) if size and isinstance(extended, ExtendVocabulary) else size

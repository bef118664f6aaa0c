"""What a job is: a name, what it must be given, and a function from a context to the last of its stages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapt.config.kinds import Kind
from adapt.model.start import Start
from adapt.runner import Finished, Stage
from adapt.stage.context import Context
from adapt.stage.selecting.select import Select


@dataclass(frozen=True, eq=False)
class Job:
    """What a user starts. A further one is its file, its test, and its line in `adapt.job.registry`."""

    kind: Kind
    """Its name, and what must be configured."""
    final: Callable[[Context], Stage[Any]]
    """Builds its last stage, which reads all others. Read this function to see what a job does."""
    answer: Callable[[Context, Finished[Any], Sequence[str]], Any] | None = None
    """Computes the job's result from its last stage; None where the stage's own result is the job's. Like a result of a
    stage, it is a dataclass with a method `blocks`. The third argument is the command line."""
    training: Callable[[Any], Stage[Any] | None] | None = None
    """Finds in the last stage the training, or the merge, whose model others may start from. It is None if the job
    makes no such model."""
    tokens: Callable[[Any], Start] | None = None
    """Finds in the last stage the model whose tokens and shape that model has. It is None if it is the one that the job
    begins with."""
    own_tokenizer: bool = False
    """Whether that model comes with a tokenizer of its own."""
    texts: Callable[[Any], Select] | None = None
    """Finds in the last stage the selection that others may train on. It is None if the job selects no text."""
    takes_texts: bool = False
    """Whether `from` may name a selection."""
    parts: Callable[[Context], Mapping[str, Stage[Any]]] | None = None
    """For chains: builds the last stage of each seed, in place of the stage that sums all seeds up."""
    first: Callable[[Any], list[Stage[Any]]] | None = None
    """Finds in the last stage the stages that must run before all others, since they are the most likely to fail."""
    is_wide: bool = False
    """Whether it has stages that can run side by side."""
    is_named: bool = False
    """Whether a run is continued by its name. In a chain, such a name begins with the name of the chain."""

    @property
    def name(self) -> str:
        """The job's name, such as `dapt`."""
        return self.kind.name

    def leaves(self, context: Context, final: Stage[Any]) -> Start | None:
        """The model that others may start from; None if there is none, or several.

        Args:
            context: of the job.
            final: its last stage.
        """
        training = self.training(final) if self.training else None
        if training is None:
            return None
        tokens = self.tokens(final) if self.tokens else context.start
        return tokens.after(training, self.own_tokenizer)

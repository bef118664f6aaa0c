"""Labelled examples of the user's task, for kinds of exports that train a head or write training data."""

from collections.abc import Sequence
from dataclasses import dataclass

from adapt.config import TaskConfig
from adapt.task.labelled_examples import check_split

Entity = tuple[int, int, str]
"""First word, last word, and type of an entity."""


@dataclass(frozen=True)
class LabelledText:
    """The train split of a task."""

    kind: str
    """Kind of the task, such as `single_label`."""
    texts: Sequence[str]
    words: Sequence[Sequence[str]]
    """Words of each text, for tasks of kind `tokens`. Empty lists for other kinds."""
    labels: Sequence[Sequence[str]]
    """Labels of each text: one for `single_label`, any number for `multi_label`, and one per word for `tokens`."""

    @property
    def classes(self) -> list[str]:
        """Labels that occur, sorted."""
        return sorted({label for labels in self.labels for label in labels})

    def entities(self) -> list[list[Entity]]:
        """Returns the entities of each text of a task of kind `tokens`."""
        return [entities_of(labels) for labels in self.labels]


def read_labelled(task: TaskConfig) -> LabelledText:
    """Reads the train split of a task.

    Raises:
        ConfigError, DataError, StorageError: for the reasons given at `adapt.task.labelled_examples.check_split`.
    """
    examples = check_split(task, "train").examples
    return LabelledText(
        task.kind,
        [example.text for example in examples],
        [example.words for example in examples],
        [[str(label) for label in example.labels] for example in examples],
    )


def entities_of(labels: Sequence[str]) -> list[Entity]:
    """Returns the entities that labels of the form B-X, I-X and O mark.

    An I-X that does not continue an entity of type X begins one, as in CoNLL's evaluation.
    """
    found: list[Entity] = []
    for place, label in enumerate(labels):
        mark, _, kind = label.partition("-")
        if mark not in ("B", "I"):
            continue
        if mark == "I" and found and found[-1][1:] == (place - 1, kind):
            found[-1] = (found[-1][0], place, kind)
        else:
            found.append((place, place, kind))
    return found

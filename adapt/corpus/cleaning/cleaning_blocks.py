"""Defines the base class of cleaning blocks, and creates the blocks that `corpus.cleaning` lists.

An error about an unknown name or option suggests the most similar known name. Function `edited` changes a text and
moves the positions of its entities accordingly.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from adapt.config.fields import what
from adapt.config.kinds import Kinds, read_options
from adapt.corpus.entities import Span, Tagged
from adapt.runner.stage import deciding
from adapt.support.errors import ConfigError


class Drop(str):
    """The reason why a document is dropped from the corpus."""


@dataclass(frozen=True)
class Block:
    """A cleaning rule that keeps, changes or drops a document. The fields of a block are its options.

    The call `block(text, changes)` returns the text, which the block may have changed, or a `Drop` with the reason to
    drop the document. The block also adds the number of its changes to the dict `changes`. The result must depend only
    on the text and the block's options.
    """

    name: ClassVar[str]
    """Name of the block in the configuration."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Names of packages that influence the block's result. Their versions are part of stage keys, so stages run again
    when a version changes."""
    keeps_entities: ClassVar[bool] = True
    """Whether the block corrects the positions of a text's entities when it changes the text."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the text, which the block may have changed, or the reason to drop the document."""
        raise NotImplementedError


@dataclass(frozen=True)
class Edit:
    """A range [start, end) of a text, in characters, and its replacement."""

    start: int
    end: int
    replacement: str = ""


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Applies edits to a text, and moves its entities accordingly. Entities that an edit touches are removed.

    Args:
        text: a text, which may be `Tagged` with entities.
        edits: edits from left to right, without overlaps.
    """
    pieces: list[str] = []
    moved: list[Span] = []
    done = shift = 0
    waiting = sorted(text.entities) if isinstance(text, Tagged) else []
    for edit in [*edits, Edit(len(text), len(text))]:
        pieces += text[done : edit.start], edit.replacement
        while waiting and waiting[0][0] < max(edit.end, edit.start + 1):
            start, end = waiting.pop(0)
            if start >= done and end <= edit.start:
                moved.append((start + shift, end + shift))
        shift += len(edit.replacement) - (edit.end - edit.start)
        done = edit.end
    changed = "".join(pieces)
    return Tagged.of(changed, moved) if isinstance(text, Tagged) else changed


def count_change(changes: dict[str, int], what: str, number: int = 1) -> None:
    """Adds `number` to the count of the changes named `what`, unless `number` is 0."""
    if number:
        changes[what] = changes.get(what, 0) + number


BLOCKS: Kinds[type[Block]] = Kinds(
    "corpus.cleaning",
    {
        "fix_unicode": "adapt.corpus.cleaning.formatters:FixUnicode",
        "language": "adapt.corpus.cleaning.filters:Language",
        "length": "adapt.corpus.cleaning.filters:Length",
        "letters": "adapt.corpus.cleaning.filters:Letters",
        "symbols": "adapt.corpus.cleaning.filters:Symbols",
        "repetition": "adapt.corpus.cleaning.filters:Repetition",
        "boilerplate": "adapt.corpus.cleaning.formatters:Boilerplate",
        "pii": "adapt.corpus.cleaning.formatters:Pii",
    },
    base="adapt.corpus.cleaning.cleaning_blocks:Block",
)
"""The built-in cleaning blocks, keyed by their name in `corpus.cleaning`. The fields of a block are its options."""


def blocks_of(cleaning: Sequence[Any]) -> tuple[Block, ...]:
    """Returns the cleaning blocks that a configuration lists, in the listed order.

    Args:
        cleaning: an entry for each block: its name, or {name: {option: value}}. A user's own block is named
            `package.module:Class`.

    Raises:
        ConfigError: there is no such block or option, a value is of the wrong type or out of its range, or a user's
            own block has no name.
    """
    return _blocks(json.dumps(cleaning))


def identity(cleaning: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns the name, all options and the package versions of each block, as a part of stage keys.

    Options that the configuration leaves out are included with their default values, so leaving an option out and
    setting it to its default give the same result.
    """
    names = [_name_and_options(entry)[0] for entry in cleaning]
    return [
        {block.name: {**what(block), **deciding(*block.packages), **BLOCKS.source(name)}}
        for name, block in zip(names, blocks_of(cleaning), strict=True)
    ]


def check_entities(cleaning: Sequence[Any], entity_field: str | None) -> None:
    """Checks that all blocks correct the positions of entities, if the corpus has a field of entities.

    Raises:
        ConfigError: a block does not correct the positions. The message names the block.
    """
    for block in blocks_of(cleaning):
        if entity_field and not block.keeps_entities:
            raise ConfigError(
                f"the block {block.name} of corpus.cleaning moves characters, so the entity positions in"
                " objective.entity_field would be wrong",
                f"remove {block.name} from corpus.cleaning and clean the files beforehand, or use objective.tagger,"
                " which works with every block",
            )


@lru_cache(maxsize=16)
def _blocks(cleaning: str) -> tuple[Block, ...]:
    return tuple(_block(*_name_and_options(entry)) for entry in json.loads(cleaning))


def _name_and_options(entry: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, options),) = entry.items()
        if options is None:
            return name, {}
        if isinstance(options, Mapping):
            return name, options
    raise ConfigError(
        f"corpus.cleaning: cannot read the entry {json.dumps(entry)}",
        "write each block as `name` or `name: {option: value}`",
    )


def _block(name: str, options: Mapping[str, Any]) -> Block:
    kind = BLOCKS.load(name)
    if not isinstance(getattr(kind, "name", None), str):
        raise ConfigError(
            f"corpus.cleaning: the class {kind.__name__} has no attribute `name`",
            f'give the class a name for records and messages: name: ClassVar[str] = "{kind.__name__.lower()}"',
        )
    return read_options(f"corpus.cleaning, {name}", kind, options)

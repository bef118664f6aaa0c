"""Creates blocks from `corpus.cleaning`. Errors about unknown names and options suggest the nearest known one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from adapt.config.kinds import Kinds, read_options
from adapt.corpus.cleaning.block import Block
from adapt.runner.key import deciding
from adapt.support.errors import ConfigError

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
    base="adapt.corpus.cleaning.block:Block",
)
"""The cleaning blocks by their names in `corpus.cleaning`. The fields of a block are its options."""


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
    """Returns the blocks with all their options and packages, for stage keys.

    The result includes default values, so it does not depend on which options the configuration writes.
    """
    names = [_name_and_options(entry)[0] for entry in cleaning]
    return [
        {block.name: {**asdict(block), **deciding(*block.packages), **BLOCKS.source(name)}}
        for name, block in zip(names, blocks_of(cleaning), strict=True)
    ]


def check_entities(cleaning: Sequence[Any], entity_field: str | None) -> None:
    """Checks that all blocks can move the entities of texts if the corpus has an entity field.

    Raises:
        ConfigError: a block cannot move entities. The message names the block.
    """
    for block in blocks_of(cleaning):
        if entity_field and not block.keeps_entities:
            raise ConfigError(
                f"corpus.cleaning has {block.name}, which moves characters: the positions in objective.entity_field"
                " would be wrong",
                f"remove {block.name} and clean the files beforehand, or use objective.tagger, which works with every"
                " block",
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
    raise ConfigError(f"corpus.cleaning has {json.dumps(entry)}", "write a block as `name` or `name: {option: value}`")


def _block(name: str, options: Mapping[str, Any]) -> Block:
    kind = BLOCKS.load(name)
    if not isinstance(getattr(kind, "name", None), str):
        raise ConfigError(
            f"corpus.cleaning: {kind.__name__} needs `name: ClassVar[str]`",
            f'give the class a name for records and messages: name: ClassVar[str] = "{kind.__name__.lower()}"',
        )
    return read_options(f"corpus.cleaning, {name}", kind, options)

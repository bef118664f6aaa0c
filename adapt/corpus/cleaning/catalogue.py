"""From `corpus.cleaning` to blocks: every name and option is checked, and what is not known gets the nearest named."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from adapt.config.plugin import plugged, read_options, source_digest
from adapt.corpus.cleaning.block import Block
from adapt.corpus.cleaning.filters import Language, Length, Letters, Repetition, Symbols
from adapt.corpus.cleaning.formatters import Boilerplate, FixUnicode, Pii
from adapt.runner.key import deciding
from adapt.support.errors import ConfigError
from adapt.support.nearest import nearest

BLOCKS: dict[str, type[Block]] = {
    block.name: block for block in (FixUnicode, Language, Length, Letters, Symbols, Repetition, Boilerplate, Pii)
}


def blocks_of(cleaning: Sequence[Any]) -> tuple[Block, ...]:
    """The blocks of a configuration, in its order.

    Args:
        cleaning: of each block its name, or {name: {option: value}}. A user's own is called `package.module:Class`.

    Raises:
        ConfigError: there is no such block or option, or a value is of the wrong type or out of its range.
    """
    return _blocks(json.dumps(cleaning))


def identity(cleaning: Sequence[Any]) -> list[dict[str, Any]]:
    """The blocks with all their options, however they were written, and their packages, for the stage's key."""
    return [
        {block.name: {**asdict(block), **deciding(*block.packages), **_own(block)}} for block in blocks_of(cleaning)
    ]


def _own(block: Block) -> dict[str, str]:
    """A user's own block is known by its source too."""
    return {} if type(block) in BLOCKS.values() else {"source": source_digest(type(block))}


def check_entities(cleaning: Sequence[Any], entity_field: str | None) -> None:
    """Refuses blocks that cannot say where their changes leave the corpus's entities.

    Raises:
        ConfigError: names the block.
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
    if name not in BLOCKS and ":" not in name:
        raise ConfigError(f"corpus.cleaning has no block {name}", nearest(name, list(BLOCKS)))
    block = BLOCKS[name] if name in BLOCKS else plugged("corpus.cleaning", name, {}, Block)
    return read_options(f"corpus.cleaning, {name}", block, options)

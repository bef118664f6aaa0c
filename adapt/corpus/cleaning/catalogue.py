"""From `corpus.cleaning` to blocks: every name and option is checked, and what is not known gets the nearest named."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from adapt.config import RANGES, out_of_range
from adapt.corpus.cleaning.block import Block
from adapt.corpus.cleaning.boilerplate import Boilerplate
from adapt.corpus.cleaning.language import Language
from adapt.corpus.cleaning.length import Length
from adapt.corpus.cleaning.letters import Letters
from adapt.corpus.cleaning.pii import Pii
from adapt.corpus.cleaning.repetition import Repetition
from adapt.corpus.cleaning.symbols import Symbols
from adapt.corpus.cleaning.unicode import FixUnicode
from adapt.errors import ConfigError
from adapt.nearest import nearest
from adapt.plugin import plugged, source_digest
from adapt.runner.packages import deciding

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
    kinds = {field.name: str(field.type) for field in fields(block)}
    for option, value in options.items():
        if option not in kinds:
            raise ConfigError(f"the block {name} of corpus.cleaning has no option {option}", nearest(option, [*kinds]))
        if fault := _fault(value, kinds[option]):
            raise ConfigError(
                f"corpus.cleaning: {name}.{option} is {json.dumps(value)}, but must be {fault}", "change it"
            )
    return block(**options)


def _fault(value: Any, kind: str) -> str | None:
    """What a value of an option should have been; None if it is."""
    names = kind.split(" | ")
    if value is None:
        return None if "None" in names else "a value"
    if names[0] == "list[str]":
        well = isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
        return None if well else "a list of words"
    if names[0] == "bool":
        return None if isinstance(value, bool) else "true or false"
    whole = names[0].endswith("Int")
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    well = number and not out_of_range(kind, value)
    return None if well else f"a {'whole ' if whole else ''}number {RANGES[names[0]][0]}"

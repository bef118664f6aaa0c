"""Changes a world, which is a configuration and its files, at random.

A change affects a field, or the content, name, order or format of a file.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args, get_origin, get_type_hints

from adapt.config import Config
from tests.fuzz.grammar import SUFFIXES, World

LINES = (".jsonl", ".json", ".csv", ".tsv", ".txt")
"""Suffixes of uncompressed formats, in which a line can be inserted."""
OUTSIDE = {"model", "storage", "tracking", "resources", "comparison", "similarity", "advice", "sequence"}
OUTSIDE |= {"generate", "synthesize"}
"""Sections about models, and sections that decide where work is done. Random changes do not affect them."""
PLACES = {"paths", "sources", "source", "dataset", "dataset_config", "dataset_split", "dataset_revision", "packages"}
PLACES |= {
    "general_paths",
    "replay_paths",
    "replay_kind",
    "pool_paths",
    "target_paths",
    "train",
    "dev",
    "test",
    "decontaminate",
    "tagger",
    "domain",
}
"""Fields that name code or text. Keys depend on the content that such a field names."""


def field_of(what: str) -> str:
    """Returns the name of the field that a change affects, read from the description of the change."""
    return what.split(" ")[0]


def changed(draw: Random, world: World) -> tuple[str, World]:
    """Makes one random change of a world.

    Returns a description of the change and the new world. The new world equals the old world if the change does not
    apply to it.
    """
    way: Callable[[Random, World], tuple[str, World]] = draw.choice((_content, _name, _order, _swap, *[_field] * 4))
    return way(draw, world)


def _content(draw: Random, world: World) -> tuple[str, World]:
    """Changes one character of a file and keeps the size of the file."""
    names = [name for name, content in world.files.items() if content and Path(name).suffix in LINES]
    if not names:
        return "nothing", world
    name = draw.choice(names)
    content = bytearray(world.files[name])
    places = [place for place, byte in enumerate(content) if chr(byte) in "aeiou"]
    if not places:
        return "nothing", world
    content[draw.choice(places)] = ord(draw.choice("aeiou"))
    return f"a letter of {name}", replace(world, files={**world.files, name: bytes(content)})


def _name(draw: Random, world: World) -> tuple[str, World]:
    """Renames a file. The new name may have the suffix of another format."""
    old = draw.choice(list(world.files))
    suffixes = "".join(Path(old).suffixes)
    new = draw.choice((f"a{old}", f"z{old}", old.removesuffix(suffixes) + draw.choice(SUFFIXES)))
    if new in world.files:
        return "nothing", world
    files = {new if name == old else name: content for name, content in world.files.items()}
    return f"{old} is called {new}", replace(world, files=files, values=_renamed(world.values, {old: new}))


def _order(draw: Random, world: World) -> tuple[str, World]:
    """Shuffles the paths of a field that lists several paths."""
    roles = [name for name, value in world.values.items() if name.endswith("paths") and isinstance(value, list)]
    if not roles:
        return "nothing", world
    name = draw.choice(roles)
    turned = world.values[name][::-1]
    return f"the order of {name}", replace(world, values={**world.values, name: turned})


def _swap(draw: Random, world: World) -> tuple[str, World]:
    """Exchanges the contents of two files, or copies one over another."""
    one, other = draw.sample(list(world.files), 2)
    mine, theirs = world.files[one], world.files[other]
    swapped = {**world.files, one: theirs, **({other: mine} if draw.random() < 0.5 else {})}
    return f"{one} has the content of {other}", replace(world, files=swapped)


def _field(draw: Random, world: World) -> tuple[str, World]:
    """Changes the value of one field of the configuration."""
    name, kind, default, _ = draw.choice(FIELDS)
    if name == "corpus.cleaning":
        value: Any = draw.choice(CLEANINGS)
    elif name == "select.kind":
        value = draw.choice(("dsir", "classifier", ["dsir", "random"]))
    elif name == "finetune.seeds":
        value = [draw.randrange(9)]
    else:
        value = _other(draw, kind, world.values.get(name, default))
    return f"{name} is {value}", replace(world, values={**world.values, name: value})


def _fields() -> list[tuple[str, Any, Any, bool]]:
    """Returns name, type and default of each field that may change at random, and whether it is declared `how`."""
    found = []
    for section, default in vars(Config()).items():
        if section in OUTSIDE or not hasattr(default, "__dataclass_fields__"):
            continue
        hints = get_type_hints(type(default))
        found += [
            (f"{section}.{f.name}", hints[f.name], getattr(default, f.name), bool(f.metadata.get("how")))
            for f in fields(default)
            if f.name not in PLACES
        ]
    return [*found, ("seed", int, 0, False), ("name", str, "dapt", True)]


FIELDS = _fields()
READS = {"mixture.replay_text_field", "evaluation.general_text_field", "finetune.seeds", "finetune.save_model"}
"""Fields that are declared `how` (how work is done), but that affect keys nevertheless."""
HOW = {name for name, _, _, how in FIELDS if how} - READS - {"task.name"}  # a task's name identifies its domain
CLEANINGS: tuple[list[Any], ...] = (
    [],
    ["fix_unicode"],
    [{"length": {"min_words": 5}}, "letters"],
    ["pii"],
    ["repetition"],
)


def _other(draw: Random, kind: Any, value: Any) -> Any:
    """Returns a random value of a type, which may equal the old value."""
    options = [option for option in get_args(kind) or (kind,) if option is not type(None)]
    option = draw.choice(options)
    if get_origin(option) is Literal:
        return draw.choice(get_args(option))
    if option is bool:
        return not value
    if option is int:
        return draw.choice((1, 2, 3, 7, 50))
    if option is float:
        return draw.choice((0.03, 0.3, 0.7, 0.95))
    return draw.choice(("id", "text", "other")) if option is str else option


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return f"@/{names.get(value[2:], value[2:])}" if isinstance(value, str) and value.startswith("@/") else value

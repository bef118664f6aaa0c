"""Expands the entries of a chain file into nodes.

An entry becomes one node for each combination of the members of its sets. Each node has its own configuration.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from adapt.chain.chain_file import MEMBER, ChainEntry, ChainFile
from adapt.config import Config, flat
from adapt.config.job_config import without_corpus
from adapt.job.job_run import Job
from adapt.parse import parse_values
from adapt.parse.keys import nested, unknown
from adapt.stage.context import models_named
from adapt.support.errors import ConfigError

_PLACEHOLDER = re.compile(r"\{([\w-]+(?:\.[\w-]+)*)\}")
_DEPTH = 10


def fill(value: Any, source: ChainFile, chosen: Mapping[str, str], place: str, depth: int = _DEPTH) -> Any:
    """Returns a value with its placeholders filled in, also inside lists and sections.

    A string that is just one placeholder is replaced with the placeholder's value, which keeps its type.

    Args:
        value: value from a chain file.
        source: the chain file, which contains the variables (section `let`) and the sets.
        chosen: the node's member of each set that is swept over.
        place: description of the value's position, for messages.
        depth: maximum nesting depth of placeholders. The value of a placeholder may contain other placeholders.

    Raises:
        ConfigError: a placeholder refers to an unknown name or back to itself, or has no value inside a text.
    """
    if isinstance(value, Mapping):
        return {name: fill(inner, source, chosen, place, depth) for name, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, source, chosen, place, depth) for inner in value]
    if not isinstance(value, str) or not _PLACEHOLDER.search(value):
        return value
    if not depth:
        what = f"{place}: the placeholder {value} refers back to itself"
        raise ConfigError(what, "change one of the values in this cycle to a value without a placeholder")
    if whole := _PLACEHOLDER.fullmatch(value):
        filled = _value(whole[1], source, chosen, place)
    else:
        filled = _PLACEHOLDER.sub(lambda match: _text(match[1], source, chosen, place), value)
    return fill(filled, source, chosen, place, depth - 1)


def _text(path: str, source: ChainFile, chosen: Mapping[str, str], place: str) -> str:
    """Returns the value of a placeholder inside a longer text."""
    value = _value(path, source, chosen, place)
    if value is None:
        raise ConfigError(f"{{{path}}} in {place} is used inside a text, but has no value", f"give {path} a value")
    return str(value)


def _value(path: str, source: ChainFile, chosen: Mapping[str, str], place: str) -> Any:
    """Returns the value of a placeholder's dotted name, such as `task.corpus.paths`.

    If an attribute has the same name as a set, its value is the name of a member of that set. The dotted name may then
    continue with an attribute of that member.
    """
    first, *rest = path.split(".")
    if first not in chosen:
        if rest or first not in source.let:
            raise unknown(f"{{{path}}} in {place}", first, {*source.let, *chosen})
        return source.let[first]
    of_set, member = first, chosen[first]
    for number, name in enumerate(rest):
        attributes = source.sets[of_set].get(member)
        if attributes is None:
            raise unknown(f"{member} in {place}, {{{path}}}", member, set(source.sets[of_set]))
        if name not in attributes:
            raise unknown(f"{{{path}}} in {place}", name, set(attributes))
        if number == len(rest) - 1:
            return attributes[name]
        if name not in source.sets:
            raise ConfigError(f"{{{path}}} in {place}: {name} is not a set", f"use one of {', '.join(source.sets)}")
        of_set, member = name, str(attributes[name])
    return member


Configured = Callable[[Mapping[str, Any]], Config]
"""Function that takes values of some fields, keyed by dotted name, and returns the configuration with these values."""
_REFERENCE = re.compile(rf"({MEMBER})(?:\[(.*)\])?")


@dataclass(frozen=True)
class Node:
    """A job of a chain, for one combination of members of its sets."""

    name: str
    """Name of the node's entry in the chain file."""
    job: Job
    values: Mapping[str, str]
    """The node's member of each set, keyed by the set's name."""
    config: Config
    configured: Configured
    """Function that takes values of some fields, and returns `config` with these values. It raises ConfigError if a
    value is wrong."""
    start: str | None
    """Label of the node whose model this node starts from. None: the node starts from model.path."""
    selected: str | None = None
    """Label of the node that selects this node's text. None: the node uses the configured text."""
    compared: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes whose models this node compares or merges, keyed by the names used in its fields."""
    is_search: bool = False
    """Whether the node is a search, whose best trial other nodes can use."""
    tuned: str | None = None
    """Label of the search whose best values replace this node's values. None: the node uses no search."""
    keep: tuple[str, ...] = ()
    """Fields whose own values the node keeps, even if the search has best values for them."""

    @property
    def needed(self) -> list[str]:
        """Labels of all nodes that this node depends on."""
        named = (self.start, self.selected, self.tuned, *self.compared.values())
        return [label for label in named if label is not None]

    @property
    def label(self) -> str:
        """The node's name with its members, such as `finetune[DAPT, acl_arc]`."""
        return node_label(self.name, list(self.values.values()))


def node_label(name: str, members: list[str]) -> str:
    """Returns the label of a node: the name of its entry and the members of its sets."""
    return f"{name}[{', '.join(members)}]" if members else name


def expand_chain(source: ChainFile, only: Mapping[str, list[str]] | None = None) -> list[Node]:
    """Returns the nodes of a chain, ordered so that each node comes after the nodes that it starts from.

    Args:
      source: the chain file.
      only: members to run, keyed by set. The result has only nodes of these members and their dependencies. The
        set `stage` contains the names of the entries.

    Raises:
      ConfigError: a placeholder, a reference or a field is wrong, or nodes start from each other in a cycle.
    """
    sets = {"stage": source.entries, **source.sets}
    for name, members in (only or {}).items():
        for member in members:
            if member not in sets.get(name, ()):
                raise unknown(f"--only {name}={member}", member, set(sets.get(name, sets)))
    nodes: dict[str, Node] = {}
    for entry in source.entries.values():
        for values in _combinations(entry, source):
            chosen = {"stage": entry.name, **values}
            if all(chosen.get(name) in members for name, members in (only or {}).items()):
                _add(entry, values, source, nodes, ())
    if not nodes:
        what = f"--only selects no stage of {source.file}: no stage has all of the named sets in its `for`"
        raise ConfigError(what, "name only sets that are together in the `for` of at least one stage")
    return list(nodes.values())


def _combinations(entry: ChainEntry, source: ChainFile) -> Iterator[dict[str, str]]:
    for members in product(*(source.sets[name] for name in entry.sweep)):
        yield dict(zip(entry.sweep, members, strict=True))


def _add(
    entry: ChainEntry, values: dict[str, str], source: ChainFile, nodes: dict[str, Node], path: tuple[str, ...]
) -> None:
    name = node_label(entry.name, list(values.values()))
    place = f"{name} in {source.file}"
    if name in path:
        raise ConfigError(
            f"stages form a cycle: {' starts from '.join([*path, name])}", "remove `from` in one of these stages"
        )
    if name in nodes:
        return

    def needed(reference: str, field: str) -> str:
        other, members = _referred(reference, source, place, field)
        _add(source.entries[other], members, source, nodes, (*path, name))
        return node_label(other, list(members.values()))

    model, selection = _sources(fill(entry.start, source, values, place), entry, source, place)
    configured = entry_configure(entry, values, source, place, selection is not None)
    config, tuned = configured({}), fill(entry.tuned, source, values, place)
    for field_name in entry.keep:
        if field_name not in flat(config):
            raise unknown(f"{field_name} in {place}, keep", field_name, set(flat(config)))
    if tuned and entry.is_search:
        raise ConfigError(f"{place} has both `tune` and `tuned`", "remove one of them")
    others = {path: field for path, field in models_named(config).items() if _names_a_stage(path, source)}
    nodes[name] = Node(
        name=entry.name,
        job=entry.job,
        values=values,
        config=config,
        configured=configured,
        start=needed(model, "from") if model else None,
        selected=needed(selection, "from") if selection else None,
        compared={path: needed(path, field) for path, field in others.items()},
        is_search=entry.is_search,
        tuned=needed(str(tuned), "tuned") if tuned else None,
        keep=entry.keep,
    )


def _names_a_stage(path: str, source: ChainFile) -> bool:
    """Returns whether the path of a model is the name of a stage in the chain file."""
    match = _REFERENCE.fullmatch(path)
    return bool(match and match[1] in source.entries)


def _sources(named_in_from: Any, entry: ChainEntry, source: ChainFile, place: str) -> tuple[str | None, str | None]:
    """Returns the stages that `from` names: the stage that makes the initial model, and the stage that selects text."""
    named: dict[bool, str] = {}
    for reference in named_in_from if isinstance(named_in_from, list) else [named_in_from] if named_in_from else []:
        match = _REFERENCE.fullmatch(str(reference))
        other = source.entries.get(match[1]) if match else None
        selects = bool(other and other.job.texts)
        if selects in named:
            both = "select text" if selects else "make a model"
            what = f"{place}: `from` names {named[selects]} and {reference}, which both {both}"
            raise ConfigError(
                what, "name at most one stage that makes a model, and at most one stage that selects text"
            )
        if selects and not entry.job.takes_texts:
            what = (
                f"{place}: `from` names {reference}, which selects text, but {entry.job.name} jobs cannot train on text"
            )
            raise ConfigError(what, f"name {reference} in `from` of a tapt, dapt or select job")
        named[selects] = str(reference)
    return named.get(False), named.get(True)


def _referred(reference: str, source: ChainFile, place: str, field: str) -> tuple[str, dict[str, str]]:
    """Returns the entry and the members that a reference such as `dapt[cs]` names."""
    match = _REFERENCE.fullmatch(reference)
    named = {name for name, other in source.entries.items() if _offers(other, field)}
    entry = source.entries[match[1]] if match and match[1] in named else None
    if not match or not entry:
        raise unknown(f"{reference} in {place}, {field}", match[1] if match else reference, named)
    members = [member.strip() for member in match[2].split(",")] if match[2] else []
    if len(members) != len(entry.sweep):
        wanted = node_label(entry.name, list(entry.sweep))
        matches = "several stages" if len(members) < len(entry.sweep) else "no stage"
        raise ConfigError(
            f"{place}, {field}: `{reference}` matches {matches}", f"name one stage in the form `{wanted}`"
        )
    for name, member in zip(entry.sweep, members, strict=True):
        if member not in source.sets[name]:
            raise unknown(f"{member} in {place}, {field}", member, set(source.sets[name]))
    return entry.name, dict(zip(entry.sweep, members, strict=True))


def _offers(entry: ChainEntry, field: str) -> bool:
    """Returns whether an entry has the kind of result that `field` of another entry refers to.

    The field `tuned` refers to best values, `from` to selected text, and other fields refer to a model.
    """
    if field == "tuned":
        return entry.is_search
    return bool(entry.job.training or (entry.job.texts and field == "from"))


def entry_configure(
    entry: ChainEntry, values: Mapping[str, str], source: ChainFile, place: str, has_text: bool
) -> Configured:
    """Returns a function that makes a node's configuration from given values of some fields.

    The other values come from the entry's fields, else from `common`, else from the job's defaults. If another stage
    selects the node's text (`has_text`), no corpus is required.
    """
    common = nested(fill(source.common, source, values, place))
    fields = nested(fill(entry.fields, source, values, place))
    prefix = [source.name] if entry.job.is_named else []
    named = {"name": "-".join([*prefix, entry.name, *values.values()]).replace("/", "_")}
    kind = without_corpus(entry.job.kind) if has_text else entry.job.kind

    def configured(tried: Mapping[str, Any]) -> Config:
        merged: dict[str, Any] = dict(named)
        for given in (common, fields, nested(tried)):
            for section, value in given.items():
                inside = isinstance(value, Mapping) and isinstance(merged.get(section), Mapping)
                merged[section] = {**merged[section], **value} if inside else value
        return parse_values(merged, kind, place)

    return configured

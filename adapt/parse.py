"""From YAML files and the command line to a checked configuration; both go the same way."""

import difflib
import math
import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, set_parsing_settings

from adapt.config import RANGES, Config, CorpusConfig, EvaluationSet, SourceConfig, flat
from adapt.errors import ConfigError

set_parsing_settings(docstring_parse_attribute_docstrings=True)

_ENTRIES = {"corpus.sources": SourceConfig, "corpus.decontaminate": EvaluationSet}
"""Fields that hold lists of sections."""


def parse(arguments: Sequence[str], program: str, description: str) -> Config:
    """The configuration of a job.

    Args:
        arguments: without the program's name. `--help` and `--print_config` print and end the process.
        program: for the usage line.
        description: what the job does.

    Raises:
        ConfigError: unreadable file, unknown key (names the nearest), wrong type or value, fields that contradict.
    """
    _refuse_unknown_keys(arguments)
    usage = f"{program} [--config FILE] [--section.field VALUE ...]"
    parser = ArgumentParser(prog=program, usage=usage, description=description, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file with any of the fields below; may be repeated.")
    parser.add_argument("--debug", action="store_true", help="Show stack traces of errors.")
    parser.add_class_arguments(Config)
    try:
        values = parser.instantiate(parser.parse_args(list(arguments)))
    except ArgumentError as error:
        raise ConfigError(_in_words(str(error)), f"see `{program} --help`") from error
    config = Config(**{name: values[name] for name in Config.__dataclass_fields__})
    check(config)
    return config


def check(config: Config) -> None:
    """Values out of their range, and fields that contradict each other.

    Raises:
        ConfigError: names them.
    """
    _check_ranges(config)
    shares = config.objective.mask_token_fraction + config.objective.random_token_fraction
    if shares > 1:
        raise ConfigError(
            f"objective.mask_token_fraction and objective.random_token_fraction add up to {shares:g}",
            "keep their sum at or below 1",
        )
    _check_entities(config)
    _check_sources(config.corpus)
    _check_mixture(config)
    _check_streaming(config)
    if config.corpus.heldout_fraction == 1:
        raise ConfigError("corpus.heldout_fraction 1 leaves nothing to train on", "use a small share such as 0.01")
    if "/" in config.name or not config.name.strip(".") or len(config.name.encode()) > 200:
        raise ConfigError(f"name {config.name!r} cannot name a folder", "use letters, digits, '-' and '_'")


def _check_sources(corpus: CorpusConfig) -> None:
    """One source or several, each from one place."""
    if not corpus.sources:
        _check_source("corpus.", corpus)
        return
    for name in ("paths", "dataset"):
        if getattr(corpus, name):
            raise ConfigError(
                f"corpus.{name} and corpus.sources are both set", f"make corpus.{name} one of the sources"
            )
    names = [source.name for source in corpus.sources]
    for source in corpus.sources:
        if not re.fullmatch(r"[\w-]+", source.name) or names.count(source.name) > 1:
            raise ConfigError(
                f"corpus.sources: the name {source.name!r} cannot name a folder, or is given twice",
                "give each source a name of its own, of letters, digits, '-' and '_'",
            )
        _check_source(f"corpus.sources, {source.name}: ", source)
    weights = {source.name: source.weight for source in corpus.sources}
    for name, weight in weights.items():
        if weight is not None and not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"corpus.sources, {name}: weight is {weight}", "use a finite number >=0")
    without = [name for name, weight in weights.items() if weight is None]
    if without and len(without) < len(weights):
        raise ConfigError(f"corpus.sources: {', '.join(without)} without weight", "give all sources one, or none")
    if not without and not any(weights.values()):
        raise ConfigError("corpus.sources: all weights are 0", "give a source a weight above 0")


def _check_mixture(config: Config) -> None:
    """Sources that follow each other have no shares."""
    if config.mixture.order != "sequential":
        return
    weighted = any(source.weight is not None for source in config.corpus.sources)
    if weighted or config.mixture.temperature != 1:
        raise ConfigError(
            f"{'corpus.sources: weight' if weighted else 'mixture.temperature'} is set, but under mixture.order"
            " sequential every source is passed through once, as it is",
            "remove it, or set mixture.order to interleaved",
        )


def _check_streaming(config: Config) -> None:
    """What a run over a corpus of unknown size needs."""
    training = config.training
    if not config.corpus.streaming:
        return
    if not (training.max_steps or training.max_tokens):
        raise ConfigError(
            "corpus.streaming is set, and the length of the run is not",
            "set training.max_steps or training.max_tokens: the learning rate is planned by it",
        )
    if training.epochs:
        raise ConfigError("training.epochs is set, but a streamed corpus is passed through once", "remove it")
    if config.corpus.sources or config.mixture.replay_paths:
        raise ConfigError(
            f"{'corpus.sources' if config.corpus.sources else 'mixture.replay_paths'} is set, but a streamed corpus has"
            " one source",
            "name all files in corpus.paths, or remove corpus.streaming",
        )


def _check_source(place: str, source: CorpusConfig | SourceConfig) -> None:
    """What is named is what is read: the field that the kind of source needs is set, and no other."""
    for kind, name in (("files", "paths"), ("dataset", "dataset")):
        if getattr(source, name) and source.source != kind:
            fix = f"remove one of the two, or set source to {kind}"
            raise ConfigError(f"{place}{name} is set but {place}source is {source.source}", fix)
    if source.source == "files" and not source.paths:
        raise ConfigError(f"{place}paths is empty", "name the corpus files: --corpus.paths 'data/*.jsonl.gz'")
    if source.source == "dataset" and not source.dataset:
        raise ConfigError(f"{place}dataset is empty", "name a dataset: --corpus.dataset owner/name")


def _check_entities(config: Config) -> None:
    """Entities come from one place, and from nowhere for other objectives."""
    objective = config.objective
    given = [name for name in ("entity_field", "tagger") if getattr(objective, name)]
    if objective.kind != "entity" and given:
        raise ConfigError(
            f"objective.{given[0]} is set but objective.kind is {objective.kind}",
            f"set objective.kind to entity, or remove objective.{given[0]}",
        )
    if objective.kind == "entity" and len(given) != 1:
        raise ConfigError(
            f"objective.kind is entity, and {'both' if given else 'neither'} of objective.entity_field and"
            f" objective.tagger {'are' if given else 'is'} set",
            "set objective.entity_field to the field of the corpus that holds entities, or objective.tagger to"
            " module:function that finds them",
        )
    if objective.entity_field and config.corpus.source == "docstrings":
        raise ConfigError("objective.entity_field is set but docstrings have no fields", "set objective.tagger instead")


def _check_ranges(config: Config) -> None:
    """The ranges that the annotations name."""
    sections = {name: value for name, value in vars(config).items() if is_dataclass(value)}
    for section, content in sections.items():
        for field in fields(content):
            value = getattr(content, field.name)
            words, holds = RANGES.get(str(field.type).split(" ")[0], ("", math.isfinite))
            if not isinstance(value, int | float):
                continue
            if not math.isfinite(value):
                raise ConfigError(f"{section}.{field.name} is {value}", "use a finite number")
            if not holds(value):
                raise ConfigError(
                    f"{section}.{field.name} is {value}, but must be {words}", "choose a value in that range"
                )


def _refuse_unknown_keys(arguments: Sequence[str]) -> None:
    known = {*flat(Config()), *Config.__dataclass_fields__, "debug"}
    options = {"config", "help", "print_config"}
    for position, argument in enumerate(arguments):
        name, _, value = argument[2:].partition("=")
        following = next(iter(arguments[position + 1 :]), "")
        if not argument.startswith("--"):
            continue
        if name.rstrip("+") not in known | options:
            raise _unknown(f"--{name}", name, known | options)
        if name == "config":
            file = value or following
            content = _read_yaml(file)
            for key in _keys(content):
                if key not in known:
                    raise _unknown(f"{key} in {file}", key, known)
            _refuse_unknown_entries(content)
        elif name.rstrip("+") in _ENTRIES:
            section, field = name.rstrip("+").split(".")
            with suppress(yaml.YAMLError):  # the parser will say so
                _refuse_unknown_entries({section: {field: yaml.safe_load(value or following)}})


def _refuse_unknown_entries(content: Mapping[str, Any]) -> None:
    """The keys of sections in lists, and those that each of them needs."""
    for name, kind in _ENTRIES.items():
        section, field = name.split(".")
        inside = content.get(section)
        entries = content.get(name) or (inside.get(field) if isinstance(inside, Mapping) else None)
        known = {each.name for each in fields(kind)}
        needed = [each.name for each in fields(kind) if each.default is each.default_factory is MISSING]
        for number, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
            if not isinstance(entry, Mapping):
                continue
            for key in entry:
                if key not in known:
                    raise _unknown(f"{key} in entry {number} of {name}", str(key), known)
            for key in needed:
                if key not in entry:
                    raise ConfigError(f"entry {number} of {name} has no {key}", f"add `{key}: …`")


def _unknown(shown: str, name: str, known: set[str]) -> ConfigError:
    by_field = {key.rsplit(".", 1)[-1]: key for key in known}
    near = difflib.get_close_matches(name, known, 1, 0.6) or [
        by_field[match] for match in difflib.get_close_matches(name.rsplit(".", 1)[-1], by_field, 1, 0.6)
    ]
    return ConfigError(f"unknown key {shown}", f"did you mean {near[0]}?" if near else "see --help for all keys")


def _read_yaml(path: str) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}", "check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else str(error)
        raise ConfigError(f"{path} is not valid YAML: {problem}", "mend that line") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} holds no `key: value` lines", "see --print_config for the form")
    for section, default in vars(Config()).items():  # a section may also be the name of a file
        if is_dataclass(default) and not isinstance(content.get(section, {}), Mapping | str):
            raise ConfigError(f"{section} in {path} holds no fields", "give it `field: value` lines, or remove it")
    return content


def _keys(content: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in content.items():
        name = f"{prefix}{key}"
        keys += _keys(value, f"{name}.") if isinstance(value, Mapping) and value and not prefix else [name]
    return keys


def _first_lines(message: str) -> str:
    kept = [line.strip() for line in message.splitlines() if line.strip() and "errors.pydantic.dev" not in line]
    return " ".join(kept[:4])


def _in_words(message: str) -> str:
    """jsonargparse's wrong-type message as one line: the field, what it takes, what it got."""
    field = re.search(r'Parser key "(.+?)":', message)
    kinds = re.findall(r"Expected an? (?:<class '(?:NoneType|(\w+))'>|typing\.(Literal\[.+\]))", message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    if not (field and kinds and value):
        return _first_lines(message)
    words = " or ".join(name or literal or "null" for name, literal in kinds)
    return f"{field[1]} takes {words}, not {value[1]}"

"""Writes the texts that `--help` and `--print_config` print."""

import ast
import inspect
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from itertools import pairwise
from typing import Any

import yaml

from adapt.config import Config
from adapt.config.job_config import Kind
from adapt.config.reading import hints_of, type_words
from adapt.parse.keys import OPTIONS

_OWN = (
    ("--help", "Show this help and end."),
    ("--config FILE", "YAML file with any of the fields below; may be repeated."),
    ("--print_config", "Print the configuration as YAML, which --config reads, and end."),
    ("--debug", "Show stack traces of errors."),
    ("--log_format FORMAT", "plain, or json: a line of JSON with time, run, stage, rank, message."),
)


def help_text(program: str, kind: Kind, options: Mapping[str, type[Any]], given: Mapping[str, Any]) -> str:
    """Writes the help text of a job, with the type, meaning and default of every field.

    Args:
        program: name of the program in the usage line of the help.
        kind: kind of the job.
        options: classes of the options of kinds, keyed by the name of their section.
        given: values that replace the defaults, keyed by section.
    """
    width = shutil.get_terminal_size().columns
    lines = [f"usage: {program} [--config FILE] [--section.field VALUE ...]", "", kind.description, ""]
    lines += [line for option, meaning in _OWN for line in _entry(option, meaning, width)]
    hints = hints_of(Config)
    for name, text in documented(Config).items():
        if name not in OPTIONS:
            lines += _field(name, hints[name], text, given.get(name, getattr(Config(), name)), width)
    for name, section in {**{n: hints[n] for n in hints if is_dataclass(hints[n])}, **options}.items():
        lines += ["", f"{name}: {inspect.cleandoc(section.__doc__ or '').partition(chr(10))[0]}"]
        values, default = given.get(name, {}), section()
        for field, text in documented(section).items():
            value = values.get(field, getattr(default, field))
            lines += _field(f"{name}.{field}", hints_of(section)[field], text, value, width)
    return "\n".join(lines)


def configuration_text(read: Mapping[str, Any], options: Mapping[str, type[Any]]) -> str:
    """Writes all fields as YAML. A field without a given value has its default."""
    own = {each.name: read.get(each.name, getattr(Config(), each.name)) for each in fields(Config)}
    sections = {name: read.get(name, kind()) for name, kind in options.items()}
    plain = {name: _plain(value) for name, value in {**own, "debug": False, **sections}.items() if name not in OPTIONS}
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def documented(section: type[Any]) -> dict[str, str]:
    """Returns the docstring below each field of a dataclass, keyed by field. Lines are joined."""
    (read,) = ast.parse(inspect.cleandoc(inspect.getsource(section))).body
    return dict(_documented(read))


def _documented(read: ast.stmt) -> Iterator[tuple[str, str]]:
    for line, below in pairwise([*getattr(read, "body", ()), ast.Pass()]):
        is_field = isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield line.target.id, " ".join(str(below.value.value).split())


def _field(name: str, hint: Any, text: str, value: Any, width: int) -> list[str]:
    words = " or ".join(type_words(hint, with_range=True)) or "value"
    default = "null" if value is None else _plain(value)
    return _entry(f"--{name}", f"{text} ({words}; default: {default})", width)


def _entry(option: str, text: str, width: int) -> list[str]:
    return [f"  {option}", *textwrap.wrap(text, max(width - 8, 40), initial_indent=" " * 8, subsequent_indent=" " * 8)]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {key: _plain(content) for key, content in value.items()}
    return [_plain(content) for content in value] if isinstance(value, list | tuple) else value

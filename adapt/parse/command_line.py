"""Reads a command line and the files that it names into sections with their fields, and prints help."""

import ast
import inspect
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from adapt.config import Config
from adapt.config.fields import hints_of, type_words
from adapt.config.job_config import Kind
from adapt.parse import keys
from adapt.parse.yaml_file import load_yaml, read_yaml, refuse_variables, takes_list, takes_text
from adapt.support.errors import ConfigError
from adapt.support.paths import user_path
from adapt.terminal.console import log

SWITCHES = frozenset({"debug", "help", "print_config"})
"""Options that take no value."""
_NO_FIELDS = frozenset({"config", "help", "print_config", "log_format"})
"""Options of a command line that are not fields. `adapt.terminal.console` handles `log_format` earlier."""


def asks_for(arguments: Sequence[str], *options: str) -> bool:
    """Returns whether the command line contains at least one of the given options."""
    return any(argument in options for argument in arguments)


def read_given(arguments: Sequence[str]) -> dict[str, Any]:
    """Reads the values on a command line and in its files, by section, before types are checked.

    Options replace values of files, wherever `--config` stands. Later files and options replace earlier ones.

    Raises:
        ConfigError: a key is unknown, or a file cannot be read.
    """
    from_files, given = dict[str, Any](), dict[str, Any]()
    kinds = _named_among(arguments)
    options: dict[str, str] = {}
    refuse_stray([argument for argument in arguments if argument != "-h"])
    for position, argument in enumerate(arguments):
        if not argument.startswith("--"):
            continue
        name, equals, value = argument[2:].partition("=")
        following = next(iter(arguments[position + 1 :]), "")
        keys.refuse_unknown_key(name, f"--{name}", kinds, _NO_FIELDS)
        text = value if equals else following
        if name == "config":
            if not text or text.startswith("--"):
                raise ConfigError("--config names no file", "write --config FILE")
            from_files = keys.overlaid(from_files, read_config_file(text, kinds))
            continue
        if not equals and (following.startswith("--") or not arguments[position + 1 :]):
            if name in SWITCHES:
                continue
            raise ConfigError(f"argument --{name}: expected one argument", f"write --{name} VALUE; see --help")
        note_repeated(name, text, options, takes_list(name, kinds))
        if name in _NO_FIELDS | SWITCHES:
            continue
        content = _value(text, name, kinds)
        keys.refuse_unknown_entries({name: content})
        sections = keys.nested({name: content})
        keys.refuse_sections_without_fields(sections, keys.COMMAND_LINE)
        keys.refuse_unknown_values(sections, keys.COMMAND_LINE, kinds)
        refuse_variables(sections, "on the command line")
        given = keys.overlaid(given, _with_files(sections, Path(), kinds))
    return keys.overlaid(from_files, given)


def read_config_file(file: str, kinds: keys.Named) -> dict[str, Any]:
    """Reads the sections of a configuration file.

    Raises:
        ConfigError: the file cannot be read, or a key or value in the file is wrong.
    """
    content = read_yaml(file)
    if "stages" in content:
        raise ConfigError(f"{file} is a chain file", f"run it with `dontstop chain run {file}`")
    keys.refuse_sections_without_fields(content, file)
    keys.refuse_unknown_values(content, file, kinds)
    sections = keys.nested(content)
    refuse_variables(sections, f"in {file}")
    return _with_files(sections, user_path(file).parent, kinds)


def _with_files(sections: Mapping[str, Any], folder: Path, kinds: keys.Named) -> dict[str, Any]:
    """Replaces sections that are names of files by the contents of the files.

    Paths are relative to `folder` or to the working folder.
    """
    read = dict(sections)
    for name, value in sections.items():
        if is_dataclass(hints_of(Config).get(name)) and isinstance(value, str):
            file = str(keys.section_file(value, folder))
            inside = {f"{name}.{key}": content for key, content in read_yaml(file).items()}
            keys.refuse_unknown_values(inside, file, kinds)
            read[name] = keys.nested(inside).get(name, {})
            refuse_variables({name: read[name]}, f"in {file}")
    return read


def note_repeated(name: str, value: str, before: dict[str, str], is_list: bool) -> None:
    """Logs which value is used if an option is given twice. Refuses a second list: the user may want both lists.

    Args:
        name: name of the option, without dashes.
        value: new value of the option.
        before: values of the earlier options, keyed by name. The new value is added.
        is_list: whether the option takes a list.

    Raises:
        ConfigError: an option that takes a list is given twice.
    """
    earlier = before.get(name)
    before[name] = value
    if earlier is None or earlier == value:
        return
    if is_list and value != "[]":
        raise ConfigError(
            f"--{name} is given twice, as {earlier} and as {value}",
            f"give all values in one list: --{name} '[{earlier.strip('[]')}, {value.strip('[]')}]'; or leave one out",
        )
    log(f"--{name} is given twice: {value or 'an empty value'} is used, and {earlier} is ignored")


def _named_among(arguments: Sequence[str]) -> keys.Named:
    """Returns the method, objective, selections and embedder that a command line and its files choose.

    Errors are ignored, because `read_given` raises them.
    """
    from_files, found = dict[str, Any](), dict[str, Any]()
    for position, argument in enumerate(arguments):
        name, equals, text = argument.removeprefix("--").partition("=")
        text = text if equals else next(iter(arguments[position + 1 :]), "")
        if name in keys.TABLES:
            found = keys.overlaid(found, keys.nested({name: _read(text)}))
        elif name == "config":
            with suppress(ConfigError):
                from_files = keys.overlaid(from_files, keys.nested(read_yaml(text)))
    return keys.named_in(keys.overlaid(from_files, found))


def _value(text: str, field: str, kinds: keys.Named) -> Any:
    """Reads the value of an option. In fields that hold text, only quoted text, null, lists and `{…}` are YAML.

    Other values stay text, such as numbers and the names of files that contain ` #` or `: `.
    """
    value = _read(text)
    if "\n" in text or (takes_text(field, kinds) and is_text(text, value)):
        return text
    return value


def is_text(text: str, value: Any) -> bool:
    """Returns whether a text that YAML reads as `value` is meant as it is."""
    begins = text[:1]
    return (
        isinstance(value, int | float)
        or (isinstance(value, str) and begins not in ("'", '"'))
        or (isinstance(value, Mapping) and begins != "{")
        or begins == "#"
    )


def _read(text: str) -> Any:
    """Reads a text as YAML. A text that is not valid YAML, such as `*.jsonl`, is returned unchanged."""
    with suppress(yaml.YAMLError):
        return load_yaml(text)
    return text


def refuse_stray(arguments: Sequence[str]) -> None:
    """Refuses values without an option, which the shell produces from an unquoted pattern.

    Raises:
        ConfigError: there is a value without an option.
    """
    takes_value = False
    for argument in arguments:
        if argument.startswith("--"):
            takes_value = "=" not in argument and argument[2:] not in SWITCHES
        elif takes_value:
            takes_value = False
        else:
            raise ConfigError(
                f"unrecognized arguments: {argument}",
                "write --section.field VALUE, with two hyphens and one value; quote a pattern, so that the shell does"
                " not expand it (--corpus.paths 'FOLDER/*.jsonl'), write several values as a list ('[FIRST, SECOND]'),"
                " and name a file with fields by --config FILE",
            )


_OWN = (
    ("--help", "Show this help and exit."),
    ("--config FILE", "YAML file with any of the fields below; may be repeated."),
    ("--print_config", "Print the configuration as YAML that --config can read, and exit."),
    ("--debug", "Show stack traces of errors."),
    ("--log_format FORMAT", "plain, or json: one line of JSON per message, with time, run, stage, rank and message."),
)


def help_text(program: str, kind: Kind, options: Mapping[str, type[Any]], given: Mapping[str, Any]) -> str:
    """Writes the help text of a job, with the type, meaning and default of every field.

    Args:
        program: name of the program in the usage line of the help.
        kind: kind of the job.
        options: option dataclasses of methods, objectives and other plug-ins (kinds), keyed by their section.
        given: values that replace the defaults, keyed by section.
    """
    width = shutil.get_terminal_size().columns
    lines = [f"usage: {program} [--config FILE] [--section.field VALUE ...]", "", kind.description, ""]
    lines += [line for option, meaning in _OWN for line in _entry(option, meaning, width)]
    hints = hints_of(Config)
    for name, text in documented(Config).items():
        if name not in keys.OPTIONS:
            lines += _field(name, hints[name], text, given.get(name, getattr(Config(), name)), width)
    for name, section in {**{n: hints[n] for n in hints if is_dataclass(hints[n])}, **options}.items():
        lines += ["", f"{name}: {inspect.cleandoc(section.__doc__ or '').partition(chr(10))[0]}"]
        values, default = given.get(name, {}), section()
        for field, text in documented(section).items():
            value = values.get(field, getattr(default, field))
            lines += _field(f"{name}.{field}", hints_of(section)[field], text, value, width)
    return "\n".join(lines)


def configuration_text(read: Mapping[str, Any], options: Mapping[str, type[Any]]) -> str:
    """Writes all fields as YAML. Fields without a value in `read` have their defaults."""
    own = {each.name: read.get(each.name, getattr(Config(), each.name)) for each in fields(Config)}
    sections = {name: read.get(name, kind()) for name, kind in options.items()}
    plain = {
        name: _plain(value) for name, value in {**own, "debug": False, **sections}.items() if name not in keys.OPTIONS
    }
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

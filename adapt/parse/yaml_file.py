"""Reads YAML files: `1e-4` is a number, and duplicate keys are errors.

Unexpanded shell variables such as `$HOME` are refused.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_origin

import yaml

from adapt.config import Config
from adapt.config.fields import field_name, hints_of, options_of
from adapt.parse.keys import ENTRIES, Named, option_sections
from adapt.support.errors import ConfigError
from adapt.support.paths import recipe_file, user_path

_FIXES = (
    (r"'\\t'", "use spaces instead of tabs"),
    (r"alias|anchor|alphabetic", "put text that begins with * or & in quotes, such as '*.jsonl'"),
    (r"'[@`%]'|directive", "put text that begins with @, % or ` in quotes"),
    (
        r"mapping values are not allowed",
        "put text that contains `: ` in quotes, and indent the keys of a section equally",
    ),
    (r"block end>", "indent the keys of a section equally, and do not indent the names of sections"),
    (r"constructor for the tag", "remove the tag, which is the word after the !"),
    (r"another document", "write only one document per file: remove the `---` line, or split the file"),
    (r"could not find expected ':'", "write `key: value`, with a space after the colon"),
)
"""Pairs of a pattern in the YAML parser's error message and the fix that our error message suggests."""
_WHOLE = r"[-+]?(?:0|[1-9][\d_]*)"


class ConfigLoader(yaml.SafeLoader):
    """A YAML loader that reads `1e-4` as a number.

    `010`, `12:30` and dates are read as text, although YAML 1.1 converts them. Keys are always text.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Builds a mapping whose keys are text. YAML 1.1 would read the key `on` as true."""
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep=deep)


ConfigLoader.yaml_implicit_resolvers = {
    letter: [(tag, form) for tag, form in resolvers if tag.rpartition(":")[2] not in ("timestamp", "float", "int")]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
ConfigLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"{_WHOLE}$"), list("-+0123456789"))
ConfigLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        rf"(?:{_WHOLE}\.[\d_]*|[-+]?\.\d[\d_]*)(?:[eE][-+]?\d+)?$|{_WHOLE}[eE][-+]?\d+$"
        r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


def load_yaml(text: str) -> Any:
    """Reads one YAML document.

    Raises:
        yaml.YAMLError: the text is not valid YAML.
    """
    return yaml.load(text, Loader=ConfigLoader)


def read_yaml(path: str) -> Mapping[str, Any]:
    """Reads a file of `key: value` lines.

    Raises:
        ConfigError: the file cannot be read, is not valid YAML, contains a key twice, or does not contain a mapping.
    """
    try:
        text = yaml_text(path)
        root = yaml.compose(text, Loader=ConfigLoader)
        _refuse_repeated(root, path)
        _refuse_dotted_again(root, path)
        content = load_yaml(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", ""))
        said = f"line {mark.line + 1}: {problem}" if mark else str(error)
        fix = next((fix for pattern, fix in _FIXES if re.search(pattern, problem)), "")
        if isinstance(error, UnicodeDecodeError):
            fix = "save the file as UTF-8"
        raise ConfigError(f"{path} is not valid YAML: {said}", fix or "correct that line") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} has no `key: value` lines", "--print_config prints an example of such a file")
    return content


def yaml_text(path: str) -> str:
    """Reads the text of a file. The path may begin with `~`, or be the name of a recipe.

    Raises:
        ConfigError: the file cannot be read.
        UnicodeDecodeError: the file is not encoded in UTF-8.
    """
    try:
        return user_path(recipe_file(path)).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "check the path") from error


def _refuse_repeated(node: yaml.Node | None, path: str) -> None:
    """Refuses duplicate keys in a mapping, because YAML would silently use the last value."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    where = f"in lines {seen[key.value]} and {line}"
                    raise ConfigError(f"{key.value} occurs twice in {path}, {where}", "remove one")
                seen[key.value] = line
            _refuse_repeated(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated(item, path)


def _refuse_dotted_again(root: yaml.Node | None, path: str) -> None:
    """Refuses a field that is written both as `section.field` and below `section`."""
    top = (
        [(str(key.value), key.start_mark.line + 1, value) for key, value in root.value]
        if isinstance(root, yaml.MappingNode)
        else []
    )
    lines = {name: line for name, line, _ in top}
    for section, _, content in top:
        for key, _ in content.value if isinstance(content, yaml.MappingNode) else []:
            name = f"{section}.{key.value}"
            if name in lines:
                where = f"in lines {lines[name]} and {key.start_mark.line + 1}"
                raise ConfigError(f"{name} occurs twice in {path}, {where}", "remove one")


_VARIABLE = re.compile(r"\$(?:\{[^}]*\}|[A-Za-z_]\w*)")
_SHELL = (
    "write the full value (a path may begin with ~), or use the variable on the command line in double quotes, so that"
    ' the shell expands it: --{name} "{value}"'
)


def refuse_variables(given: Mapping[str, Any], place: str) -> None:
    """Refuses shell variables in the values of fields, because variables are not expanded here.

    Args:
        given: sections with their fields.
        place: location of the values, such as `in job.yaml`.

    Raises:
        ConfigError: a value contains a shell variable. The message names the field and the location.
    """
    for section, content in given.items():
        for keys, value in _texts(content, (section,)):
            if variable := _variable(keys, value):
                raise ConfigError(
                    f"{field_name(keys)} {place} is {value}, but {variable} is not expanded, because only the shell"
                    " expands variables",
                    _SHELL.format(name=".".join(map(str, keys[:2])), value=value),
                )


def _texts(value: Any, keys: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yields the path and the value of each text in a section. Options of cleaning blocks and selections are left out.

    A path consists of names of keys and of positions in lists.
    """
    if isinstance(value, str):
        yield keys, value
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _texts(entry, (*keys, number))
    elif isinstance(value, Mapping):
        in_list = next((number for number, key in enumerate(keys) if isinstance(key, int)), 0)
        if len(keys) == 1 or ".".join(map(str, keys[:in_list])) in ENTRIES:
            for name, content in value.items():
                yield from _texts(content, (*keys, str(name)))


def takes_list(name: str, named: Named) -> bool:
    """Returns whether the field with a dotted name may be a list."""
    return any(get_origin(option) is list for option in _options(name, named))


def takes_text(name: str, named: Named) -> bool:
    """Returns whether the field with a dotted name accepts any text but no numbers."""
    options = _options(name, named)
    return str in options and not {int, float} & {*options}


def _options(name: str, named: Named) -> tuple[Any, ...]:
    """Returns the types that the field with a dotted name may have."""
    section, _, field = name.partition(".")
    kind = _kinds(named, frozenset([section])).get(section, Any)
    if field:
        kind = hints_of(kind).get(field, Any) if is_dataclass(kind) else Any
    return options_of(kind)


@cache
def _kinds(named: Named, sections: frozenset[str]) -> dict[str, Any]:
    """Returns the types of the fields outside sections, and the classes of the given sections."""
    return {**hints_of(Config), **option_sections(named, sections)}


def _variable(keys: Sequence[str | int], value: str) -> str | None:
    """Returns the shell variable in a text, or None.

    The names of existing files and of data fields may contain a `$`, so they are not searched for variables.
    """
    if str(keys[-1]).endswith("_field"):
        return None
    found = _VARIABLE.search(value.partition("?")[0] if "://" in value else value)
    return found[0] if found and not os.path.exists(os.path.expanduser(value)) else None

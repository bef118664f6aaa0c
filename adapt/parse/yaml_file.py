"""Reads YAML files: `1e-4` is a number, duplicate keys are errors, and messages name the line of a key.

Empty values (`learning_rate:`) and unexpanded shell variables such as `$HOME` are refused.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin

import yaml

from adapt.config import Config
from adapt.config.fields import field_name, hints_of, options_of, takes_null
from adapt.parse.keys import Named, option_sections
from adapt.support.errors import ConfigError
from adapt.support.user_path import user_path

Keys = Sequence[str | int]
"""Path from the root of a document to a value: names of keys, and positions in lists."""
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


def compose_yaml(text: str) -> yaml.Node | None:
    """Reads one YAML document as nodes with line numbers. Returns None if the document is empty or not valid."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=ConfigLoader)
    except yaml.YAMLError:
        return None
    return node


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
    """Reads the text of a file. The path may begin with `~`.

    Raises:
        ConfigError: the file cannot be read.
        UnicodeDecodeError: the file is not encoded in UTF-8.
    """
    try:
        return user_path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "check the path") from error


def node_at(node: yaml.Node | None, keys: Keys) -> tuple[yaml.Node | None, int]:
    """Returns the node of a value (None if the value is missing) and the line of the value's key, counted from 1.

    A section can be written as `section:` with its fields below, or as `section.field:`.
    """
    line = node.start_mark.line + 1 if node else 1
    if not keys or node is None:
        return node, line
    if isinstance(node, yaml.SequenceNode):
        return node_at(node.value[int(keys[0])], keys[1:]) if int(keys[0]) < len(node.value) else (None, line)
    if isinstance(node, yaml.MappingNode):
        for count in range(len(keys), 0, -1):
            wanted = ".".join(map(str, keys[:count]))
            for key, value in node.value:
                if key.value == wanted:
                    found, below = node_at(value, keys[count:])
                    return found, below if keys[count:] else key.start_mark.line + 1
    return None, line


def line_namer(file: str, *above: str, below: int = 0) -> Callable[[Keys], str]:
    """Returns a function that formats the line of a value in a YAML file, for error messages.

    Args:
        file: path of the file.
        above: keys of the section in the file that contains the values.
        below: number of keys at the beginning of a value's path that do not occur in the file.
    """

    def place(keys: Keys) -> str:
        return f" in {file}, line {node_at(compose_yaml(yaml_text(file)), (*above, *keys[below:]))[1]},"

    return place


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


Place = Callable[[Keys], str]
"""Formats the location of a value for error messages, as ` in FILE, line N`."""
_VARIABLE = re.compile(r"\$(?:\{[^}]*\}|[A-Za-z_]\w*)")
_SHELL = (
    "write the full value (a path may begin with ~), or use the variable on the command line in double quotes, so that"
    ' the shell expands it: --{name} "{value}"'
)


def refuse_blanks(given: Mapping[str, Any], named: Named, place: Place, root: yaml.Node | None = None) -> None:
    """Refuses null in fields that cannot be null, and shell variables, because variables are not expanded here.

    Args:
        given: sections with their fields.
        named: names of the chosen method, objective, selections and embedder, whose options are also sections.
        place: formats the location of a value.
        root: the YAML document that `given` was read from, or None. It distinguishes an empty value from `null`.
            Values of unknown type, such as options in a list of selections, may be null but not empty.

    Raises:
        ConfigError: a value is null or contains a shell variable. The message names the field and the location.
    """
    kinds = _kinds(named, frozenset(given))
    for section, content in given.items():
        for keys, kind, value in _leaves(content, kinds.get(section, Any), (section,)):
            name = field_name(keys)
            is_text = isinstance(keys[-1], int) or str(keys[-1]).endswith("_field")
            is_blank = value == "" and is_text and kind is not Any  # an empty path would mean the current folder
            if value is None:
                is_blank = _is_empty(root, keys) if kind is Any else not takes_null(kind)
            if is_blank:
                raise ConfigError(
                    f"{name}{place(keys)} has no value",
                    "write a value after the name, or remove the field to keep the default" + _default(keys),
                )
            if isinstance(value, str) and kind is not Any and (variable := _variable(keys, value)):
                why = f"{variable} is not expanded, because only the shell expands variables"
                what = f"{name}{place(keys)} is {value}, but {why}"
                raise ConfigError(what, _SHELL.format(name=".".join(map(str, keys[:2])), value=value))


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


def _leaves(value: Any, kind: Any, keys: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """Yields the keys, the declared type and the content of each scalar in nested values.

    An undeclared type is `Any`.
    """
    options = [option for option in options_of(kind) if option is not NoneType]
    if isinstance(value, Mapping):
        section = next((option for option in options if is_dataclass(option)), None)
        inner = hints_of(section) if section else {}
        for name, content in value.items():
            yield from _leaves(content, inner.get(name, Any), (*keys, str(name)))
    elif isinstance(value, list | tuple):
        inside = next((get_args(option) for option in options if get_origin(option) in (list, tuple)), ())
        for number, content in enumerate(value):
            yield from _leaves(content, inside[0] if inside else Any, (*keys, number))
    else:
        yield keys, kind, value


def _is_empty(root: yaml.Node | None, keys: Keys) -> bool:
    """Returns whether a YAML value is empty, as in `learning_rate:`.

    The value `null` does not count as empty, nor does a cleaning block that has only a name.
    """
    node, _ = node_at(root, keys)
    is_block = keys[:2] == ("corpus", "cleaning") and len(keys) == 4
    return isinstance(node, yaml.ScalarNode) and node.value == "" and not is_block


def _variable(keys: Keys, value: str) -> str | None:
    """Returns the shell variable in a text, or None.

    The names of existing files and of data fields may contain a `$`, so they are not searched for variables.
    """
    if str(keys[-1]).endswith("_field"):
        return None
    found = _VARIABLE.search(value.partition("?")[0] if "://" in value else value)
    return found[0] if found and not os.path.exists(os.path.expanduser(value)) else None


def _default(keys: Keys) -> str:
    """Formats the default of a field in brackets. Long defaults give an empty text."""
    section = getattr(Config(), str(keys[0]), None)
    value = getattr(section, str(keys[1]), None) if len(keys) == 2 else section if len(keys) == 1 else None
    return f" ({value})" if isinstance(value, int | float | str) and len(str(value)) <= 40 else ""

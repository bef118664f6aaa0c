"""Reads YAML files: `1e-4` is a number, duplicate keys are refused, and the line of every key is known."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from adapt.support.errors import ConfigError

Keys = Sequence[str | int]
"""Path from the root of a document to a value: names of keys, and positions in lists."""
_FIXES = (
    (r"'\\t'", "use blanks in place of tabs"),
    (r"alias|anchor|alphabetic", "put text that begins with * or & in quotes, such as '*.jsonl'"),
    (r"'[@`%]'|directive", "put text that begins with @, % or ` in quotes"),
    (
        r"mapping values are not allowed",
        "put text that contains `: ` in quotes, and indent the keys of a section equally",
    ),
    (r"block end>", "indent the keys of a section equally, and those of sections not at all"),
    (r"constructor for the tag", "remove the tag, which is the word after the !"),
    (r"another document", "give one document per file: remove the `---` line, or split the file"),
    (r"could not find expected ':'", "write `key: value`, with a blank after the colon"),
)
"""For each pattern of a message of the YAML parser, the fix that the error message suggests."""
_WHOLE = r"[-+]?(?:0|[1-9][\d_]*)"


class ConfigLoader(yaml.SafeLoader):
    """Reads `1e-4` as a number.

    Reads `010`, `12:30` and dates as text, although YAML 1.1 converts them. Keys are also text.
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
        raise ConfigError(f"{path} holds no `key: value` lines", "--print_config shows a file of that form")
    return content


def yaml_text(path: str) -> str:
    """Reads the text of a file. The path may begin with `~`.

    Raises:
        ConfigError: the file cannot be read.
        UnicodeDecodeError: the file is not encoded in UTF-8.
    """
    try:
        return Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, RuntimeError) as error:  # RuntimeError: the path begins with `~name`, but there is no such user
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}", "check the path") from error


def node_at(node: yaml.Node | None, keys: Keys) -> tuple[yaml.Node | None, int]:
    """Returns the node of a value, or None, and the line of the value's key, counted from 1.

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
    """Refuses duplicate keys in a mapping, because YAML would silently use the last one."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    where = f"in lines {seen[key.value]} and {line}"
                    raise ConfigError(f"{key.value} stands twice in {path}, {where}", "remove one")
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
                raise ConfigError(f"{name} stands twice in {path}, {where}", "remove one")

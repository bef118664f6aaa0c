"""Defines the formats in which documents are rewritten, with the prompt of each format. Loads no heavy library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from adapt.config import SynthesizeConfig
from adapt.support.errors import ConfigError, nearest
from adapt.support.paths import user_path

OWN_TEMPLATES = Path(__file__).with_name("templates.yaml")
DOCUMENT = "{document}"
"""Placeholder for the document in a prompt."""


@dataclass(frozen=True)
class Format:
    """A format in which documents are rewritten, such as questions and answers."""

    name: str
    before: str
    """Text of the prompt before the document."""
    after: str
    """Text of the prompt after the document."""
    pairs: bool = False
    """Whether the output is a query, which is paired with the document, instead of text to train on."""

    def prompt(self, document: str) -> str:
        """Returns the prompt that asks a model to rewrite a document in this format."""
        return f"{self.before}{document}{self.after}"


def formats_of(section: SynthesizeConfig) -> tuple[Format, ...]:
    """Reads the formats that a configuration names, in the configured order.

    Raises:
        ConfigError: the file of templates cannot be read or lacks a format, a format has no valid prompt, or the
            configuration names no format or the same format twice.
    """
    file = user_path(section.templates) if section.templates else OWN_TEMPLATES
    known = _read(file)
    if not section.formats or len(set(section.formats)) < len(section.formats):
        raise ConfigError(
            f"synthesize.formats is {section.formats}, but must name at least one format, and each format only once",
            f"name some of {', '.join(known)}",
        )
    return tuple(_format(name, known, file) for name in section.formats)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"synthesize.templates: {file} cannot be read: {reason}", "give a YAML file {NAME: {prompt: …}}"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"synthesize.templates: {file} has no formats", "write it as {NAME: {prompt: …}}")
    return {str(name): value for name, value in content.items()}


def _format(name: str, known: dict[str, Any], file: Path) -> Format:
    if name not in known:
        raise ConfigError(f"synthesize.formats: {file} has no format {name!r}", nearest(name, known))
    given = known[name]
    fix = f"write it as {{prompt: a text that contains {DOCUMENT} once, pairs: true or false}}"
    if not isinstance(given, dict) or given.keys() - {"prompt", "pairs"} or not isinstance(given.get("prompt"), str):
        what = f"synthesize.templates: {file}: {name} has no `prompt` text, or has fields other than prompt and pairs"
        raise ConfigError(what, fix)
    prompt, pairs = given["prompt"].strip(), given.get("pairs", False)
    if prompt.count(DOCUMENT) != 1 or not isinstance(pairs, bool):
        what = f"{name} does not contain {DOCUMENT} exactly once, or pairs is not true or false"
        raise ConfigError(f"synthesize.templates: {file}: {what}", fix)
    before, after = prompt.split(DOCUMENT)
    return Format(name, before, after, pairs)

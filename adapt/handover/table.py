"""Finds the kinds of exports that `export.kinds` names, checks them before anything runs, and writes their files."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapt.config import Config, section_of
from adapt.config.kinds import Kinds
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver
from adapt.model.additions.table import refuse_additions, stored_additions
from adapt.model.locate import CONFIG
from adapt.support.errors import ConfigError
from adapt.terminal.console import log

EXPORT_KINDS: Kinds[type[ExportKind]] = Kinds(
    "export.kinds",
    {
        "transformers": "adapt.handover.export_kind:ToTransformers",
        "sentence_transformers": "adapt.handover.export_kind:ToSentenceTransformers",
        "tei": "adapt.handover.export_kind:ToTei",
        "setfit": "adapt.handover.task_kinds:ToSetFit",
        "gliner": "adapt.handover.task_kinds:ToGliner",
        "onnx": "adapt.handover.to_onnx:ToOnnx",
        "gguf": "adapt.handover.to_gguf:ToGguf",
        "vllm": "adapt.handover.export_kind:ToVllm",
    },
    base="adapt.handover.export_kind:ExportKind",
)


def chosen_kinds(config: Config) -> dict[str, ExportKind]:
    """Returns the configured kinds of exports with their options, keyed by name."""
    kinds: dict[str, ExportKind] = {}
    for name in config.export.kinds:
        if name in kinds:
            raise ConfigError(f"export.kinds names {name} twice", "name it once")
        given = config.export_options.get(section_of(name), {})
        kinds[name] = EXPORT_KINDS.load(name)(EXPORT_KINDS.read(name, given))
    return kinds


def need_vectors(config: Config) -> list[str]:
    """Returns the names of the configured kinds that need the files of sentence-transformers."""
    return [name for name, kind in chosen_kinds(config).items() if kind.needs_vectors]


def kinds_what(config: Config) -> dict[str, Any]:
    """Returns the part of an export stage's key that describes the configured kinds. Empty if no kind is configured."""
    kinds = {
        name: {**(asdict(kind.options) if kind.options else {}), **EXPORT_KINDS.source(name)}
        for name, kind in chosen_kinds(config).items()
    }
    return {"kinds": kinds} if kinds else {}


def check_kinds(config: Config, model: Path) -> None:
    """Checks before the job starts that the packages of all kinds are installed, and the kinds accept the model."""
    for name, kind in chosen_kinds(config).items():
        missing = [package for package in kind.packages if importlib.util.find_spec(package) is None]
        if missing:
            command = f"pip install 'dontstop[{kind.extra}]'" if kind.extra else f"pip install {' '.join(missing)}"
            raise ConfigError(
                f"export.kinds names {name}, which needs packages that are not installed: {', '.join(missing)}", command
            )
        added = [entry["kind"] for entry in stored_additions(model)] if (model / CONFIG).is_file() else []
        if added and name != "transformers":
            raise ConfigError(
                f"export.kinds: {name} would ignore the modules that {model} has in addition to its architecture:"
                f" {', '.join(added)}",
                f"remove {name} from export.kinds",
            )
        kind.refuse(config, model)


def write_kinds(exported: ExportedModel) -> tuple[list[HandedOver], list[str]]:
    """Writes the files of all configured kinds of exports.

    Returns:
        The result of each kind, and Markdown for the model card.

    Raises:
        ModelError: a kind's files differ from the model, or training added modules that a kind would ignore.
    """
    written, examples = [], []
    for name, kind in chosen_kinds(exported.config).items():
        if name != "transformers":
            refuse_additions(exported.folder, f"exported as {name} (export.kinds)")
        log(f"export: {name}")
        written.append(kind.write(exported))
        if example := kind.example(exported):
            examples.append(example)
    return written, examples


def handed_rows(written: Sequence[HandedOver | Mapping[str, Any]]) -> list[list[str]]:
    """Returns the rows of a table with one row per kind: kind, files, largest difference and note."""
    rows = []
    for entry in written:
        of = asdict(entry) if isinstance(entry, HandedOver) else entry
        difference = "" if of["difference"] is None else f"{of['difference']:.1e}"
        rows.append([of["kind"], ", ".join(of["files"]), difference, of["note"]])
    return rows

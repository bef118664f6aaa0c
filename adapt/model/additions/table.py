"""Attaches additions (modules such as adapters) to models, and reads and writes their entries in config.json.

An example of the list in config.json is `"additions": [{"kind": "adapters", ...options...}]`. This module imports
neither torch nor transformers, so that a job can report an unsuitable model before they are loaded.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adapt.config.kinds import Kinds
from adapt.model.locate import CONFIG, read_json
from adapt.support.errors import ModelError, nearest

ADDITIONS: Kinds[Callable[..., None]] = Kinds(
    "additions",
    {
        "domains": "adapt.model.additions.domain_modules:attach_domains",
        "plugins": "adapt.model.additions.masks:attach_plugins",
        "unit_masks": "adapt.model.additions.masks:attach_unit_masks",
        "adapters": "adapt.model.additions.domain_modules:attach_adapters",
        "prompts": "adapt.model.additions.prompts:attach_prompts",
        "prefixes": "adapt.model.additions.prompts:attach_prefixes",
        "experts": "adapt.model.additions.domain_modules:attach_experts",
        "exbert": "adapt.model.additions.exbert:attach_exbert",
    },
)
"""The functions that attach additions to a model, keyed by the kind of addition.

Each function takes a `transformers` model, with or without its head, and the options in the addition's entry. It adds
hooks that change the outputs, and adds modules to the base model in place, so that their parameters and buffers are in
the model's `state_dict`. It must also work under `torch.device("meta")`. config.json contains names of kinds instead
of functions, because otherwise the author of a folder could make this project run any function.
"""


def attach_additions(model: Any, config: Any) -> None:
    """Attaches the additions listed in a transformers configuration to a model that was built from it.

    The additions' weights are not initialized.

    Raises:
        ModelError: a kind or an option is unknown.
    """
    for entry in additions_of(config):
        options = {name: value for name, value in entry.items() if name != "kind"}
        kind = entry["kind"]
        if kind not in ADDITIONS:
            known = ", ".join(sorted(ADDITIONS)) or "none"
            raise ModelError(
                f"config.json names the addition {kind!r}, which this version of dontstop does not know",
                nearest(kind, ADDITIONS, f"load it with the version of dontstop that made it (known here: {known})"),
            )
        attach = ADDITIONS.load(kind)
        try:
            attach(model, **options)
        except TypeError as error:  # another version of dontstop may have written the entry
            raise ModelError(
                f"the options of the addition {kind!r} in config.json do not fit this version of dontstop: {error}",
                "load the model with the version of dontstop that saved it",
            ) from error


KEY = "additions"


def additions_of(config: Any) -> list[dict[str, Any]]:
    """Returns the entries of additions in transformers' configuration object, in the order in which to attach them.

    Raises:
        ModelError: the entries are not a list of objects with a kind, or the numbers of domains and of sets differ.
    """
    return _counted(_checked(getattr(config, KEY, None) or []))


def with_addition(config: Any, kind: str, **options: Any) -> None:
    """Adds the entry of an addition to a configuration, or replaces the entry of the same kind.

    Args:
        config: transformers' configuration object, which is changed in place.
        kind: a key of `adapt.model.additions.table.ADDITIONS`.
        options: arguments of the function that attaches the addition; plain JSON.
    """
    entry = {"kind": kind, **options}
    entries = _checked(getattr(config, KEY, None) or [])  # numbers of sets may differ until all entries are there
    kinds = [old["kind"] for old in entries]
    replaced = [entry if old["kind"] == kind else old for old in entries]
    setattr(config, KEY, replaced if kind in kinds else [*entries, entry])


def stored_additions(folder: Path) -> list[dict[str, Any]]:
    """Reads the entries of additions from the config.json of a model folder.

    Raises:
        ModelError: config.json cannot be read, or its entries are invalid.
    """
    return _counted(_checked(read_json(folder / CONFIG).get(KEY) or []))


def _checked(entries: Any) -> list[dict[str, Any]]:
    if not (isinstance(entries, list) and all(isinstance(entry, dict) and "kind" in entry for entry in entries)):
        raise ModelError(
            f"`{KEY}` in a config.json is not a list of objects that each have a kind", "copy or train the model again"
        )
    return entries


def _counted(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checks that each kind of addition has one set for each named domain, and returns the entries."""
    for names in (entry["names"] for entry in entries if entry["kind"] == "domains"):
        for entry in entries:
            if entry.get("sets", len(names)) != len(names):
                raise ModelError(
                    f"a config.json names {len(names)} domains ({', '.join(names)}), but has {entry['kind']} for"
                    f" {entry['sets']} domains",
                    "copy or train the model again",
                )
    return entries


def refuse_additions(folder: Path, what: str) -> None:
    """Raises an error if a model has additions, for operations that only work with ordinary models.

    Args:
        folder: folder of the model.
        what: the operation, which completes "cannot be …" in the message.

    Raises:
        ModelError: the model has additions.
    """
    if kinds := [entry["kind"] for entry in stored_additions(folder)]:
        raise ModelError(
            f"{folder} cannot be {what}: it carries {', '.join(kinds)} in addition to its architecture",
            "choose a model without additions, such as the model from which its training started",
        )


def check_parts(folder: Path, domain: str) -> None:
    """Checks that a model has added parameters for a domain.

    Raises:
        ModelError: the model has no parameters for this domain. The error lists its domains.
    """
    names = [name for entry in stored_additions(folder) if entry["kind"] == "domains" for name in entry["names"]]
    if domain not in names:
        raise no_parts(str(folder), domain, names)


def no_parts(model: str, domain: str, names: Sequence[str]) -> ModelError:
    """Returns the error for a domain for which a model has no added parameters."""
    fix = (
        f"choose one of {', '.join(names)}" if names else "leave out the domain: the model has no domain-specific parts"
    )
    return ModelError(f"{model} has no parts for the domain {domain!r}", nearest(domain, names, fix))

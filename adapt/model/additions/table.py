"""The table of additions, how config.json names them, and how a model gets them.

config.json holds `"additions": [{"kind": "adapters", ...options...}]`. This module imports neither torch nor
transformers, so that a job can refuse a model at once.
"""

from __future__ import annotations

from collections.abc import Callable
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
        "adapters": "adapt.model.additions.bottlenecks:attach_adapters",
        "prompts": "adapt.model.additions.soft_prompts:attach_prompts",
        "prefixes": "adapt.model.additions.prefixes:attach_prefixes",
        "experts": "adapt.model.additions.experts:attach_experts",
        "exbert": "adapt.model.additions.exbert:attach_exbert",
    },
)
"""The functions that attach each kind of addition.

A function takes a model of transformers, with or without its head, and the options of its entry. It puts modules into
the base model in place, so that their parameters and buffers stand in its `state_dict`, and changes what it computes;
also under `torch.device("meta")`. config.json never names a function: that would run code of whoever made the folder.
"""


def attach_additions(model: Any, config: Any) -> None:
    """Gives a model the additions that its configuration names. Their weights are not filled.

    Args:
        model: as transformers builds it from the configuration.
        config: the configuration.

    Raises:
        ModelError: a kind or an option is not known.
    """
    for entry in additions_of(config):
        options = {name: value for name, value in entry.items() if name != "kind"}
        kind = entry["kind"]
        if kind not in ADDITIONS:
            known = ", ".join(sorted(ADDITIONS)) or "none"
            raise ModelError(
                f"there is no addition {kind!r} to a model",
                nearest(kind, ADDITIONS, f"load it with the version of dontstop that made it (known here: {known})"),
            )
        attach = ADDITIONS.load(kind)
        try:
            attach(model, **options)
        except TypeError as error:  # options of another version
            raise ModelError(
                f"the addition {kind!r} cannot be attached with what config.json says of it: {error}",
                "load it with the version of dontstop that made it",
            ) from error


KEY = "additions"
_ITS = "its config.json"


def additions_of(config: Any) -> list[dict[str, Any]]:
    """The entries of a configuration (transformers' object), in the order in which they are attached.

    Raises:
        ModelError: they are not a list of objects, each with a kind; or there are other numbers of domains and of sets.
    """
    return _counted(_checked(getattr(config, KEY, None) or [], _ITS), _ITS)


def with_addition(config: Any, kind: str, **options: Any) -> None:
    """Enters an addition into a configuration: in place of the one of that kind, or as the last.

    Args:
        config: transformers' object, which is changed.
        kind: a key of `adapt.model.additions.table.ADDITIONS`.
        options: what its `attach` is given; plain JSON.
    """
    entry = {"kind": kind, **options}
    entries = _checked(getattr(config, KEY, None) or [], _ITS)
    kinds = [each["kind"] for each in entries]
    replaced = [entry if each["kind"] == kind else each for each in entries]
    setattr(config, KEY, replaced if kind in kinds else [*entries, entry])


def stored_additions(folder: Path) -> list[dict[str, Any]]:
    """The entries of a model folder.

    Raises:
        ModelError: config.json cannot be read, or its entries are broken.
    """
    where = str(folder / CONFIG)
    return _counted(_checked(read_json(folder / CONFIG).get(KEY) or [], where), where)


def refuse_additions(folder: Path, what: str) -> None:
    """For what works with ordinary models alone.

    Args:
        folder: of the model.
        what: completes "cannot be …".

    Raises:
        ModelError: it has additions.
    """
    if kinds := [entry["kind"] for entry in stored_additions(folder)]:
        raise ModelError(
            f"{folder} cannot be {what}: it carries {', '.join(kinds)} beside its architecture",
            "choose an ordinary model, such as the one that its training began with",
        )


def check_parts(folder: Path, domain: str) -> None:
    """Refuses a domain that a model has no parts for.

    Args:
        folder: of the model.
        domain: its name.

    Raises:
        ModelError: names those that it has parts for.
    """
    named = [entry for entry in stored_additions(folder) if entry["kind"] == "domains"]
    names = [name for entry in named for name in entry["names"]]
    if domain not in names:
        fix = f"choose one of {', '.join(names)}" if names else "name no domain: the model has no parts for any"
        raise ModelError(f"{folder} has no parts for the domain {domain!r}", nearest(domain, names, fix))


def _checked(entries: Any, where: str) -> list[dict[str, Any]]:
    """The entries, if they are what they must be."""
    if not (isinstance(entries, list) and all(isinstance(each, dict) and "kind" in each for each in entries)):
        raise ModelError(
            f"`{KEY}` in {where} is not a list of objects that each have a kind", "copy or make the model again"
        )
    return entries


def _counted(entries: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """The entries, if every kind has a set for each of the domains that are named."""
    for names in (entry["names"] for entry in entries if entry["kind"] == "domains"):
        for entry in entries:
            if entry.get("sets", len(names)) != len(names):
                raise ModelError(
                    f"{where} names {len(names)} domains ({', '.join(names)}), but has {entry['kind']} for"
                    f" {entry['sets']}",
                    "copy or make the model again",
                )
    return entries

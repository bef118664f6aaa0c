"""ELLE's domain prompts: vectors before each document that say which domain it is from, and are given again later.

They train with the model, on text of their domain, and stay as they are afterwards. Replayed text has those of its own
domain. Prototypes, by which a text without a domain finds its prompt, are taken anew before each training, of all
domains, since the model itself changes: the text of those before is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.errors import ConfigError
from adapt.method.base import Setting
from adapt.method.measuring.rows import check_prepared
from adapt.method.prompts.room import check_room
from adapt.method.sets import NAMED, learn_prototype, sample_of, take_set, words_of
from adapt.model.additions.config import refuse_additions, stored_additions
from adapt.model.limits import PROMPTS

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "elle.prompt_length"


def check_prompts(config: Config, model: Path, length: int) -> None:
    """Refuses what could not be trained with prompts of this length, or, if it is 0, without any.

    Raises:
        ConfigError: the text is streamed, prompts leave no room for it, or those of the model have another length.
        ModelError: the model has other additions.
    """
    found = {entry["kind"]: entry for entry in stored_additions(model)}
    if not length or found.keys() - {PROMPTS, NAMED}:
        refuse_additions(model, "grown (method.kind elle)")
        return
    check_prepared(config, "the prototype of a domain", f"set {FIELD} to 0")
    if PROMPTS in found and found[PROMPTS]["length"] != length:
        had = found[PROMPTS]["length"]
        what = f"{FIELD} is {length}, but the prompts of {model} have {had} vectors"
        raise ConfigError(what, f"set {FIELD} to {had}")
    check_room(config, model, FIELD, length)


def take_prompt(
    model: Any, setting: Setting, length: int, past: Mapping[str, Path]
) -> tuple[list[str], dict[str, int]]:
    """Gives the model the prompt of the domain to be learnt, and puts it into use. The model trains with it.

    Args:
        model: in evaluation mode, with the prompts of the domains before.
        setting: of the training.
        length: of a prompt [vectors].
        past: folders of the text of the domains before, in the order learnt, by the method's names.

    Returns:
        The names of all domains that have a prompt, and the numbers of those of past text.
    """
    from adapt.model.additions.domains import domains_of, own_parameters
    from adapt.model.additions.prompts import attach_prompts, begin_prompt

    known = domains_of(model)
    before = list(known.names) if known else []
    # the model may know more domains, from an earlier sequence
    last = list(zip(reversed([*past]), reversed(before), strict=False))
    for text, name in last:
        learn_prototype(model, name, sample_of([past[text]], setting.seed))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    names = take_set(
        model,
        setting,
        True,
        lambda: attach_prompts(model, 1, length),
        lambda number: begin_prompt(model, number, words_of(model, setting, length)),
    )
    for parameter in trained:
        parameter.requires_grad_(True)
    for number, name in enumerate(names):
        if name != setting.domain:
            for parameter in own_parameters(model, number):
                parameter.requires_grad_(False)
    return names, {text: names.index(name) for text, name in last}


def grow_prompts(model: Any, larger: Any, sources: Tensor) -> None:
    """Gives a larger model the prompts and prototypes of a smaller one.

    Args:
        model: the smaller one.
        larger: without any.
        sources: int64 [after], for each of its states the one that it copies.
    """
    from adapt.model.additions.domains import attach_domains, domains_of, sets_of
    from adapt.model.additions.prompts import attach_prompts

    known, sets = domains_of(model), sets_of(model)
    if known is None or not sets:
        return
    attach_domains(larger, known.names)
    prompts: Any = sets[0]
    attach_prompts(larger, len(prompts), prompts[0].length)
    for old, new in zip((known, *prompts), (domains_of(larger), *sets_of(larger)[0]), strict=True):
        vectors: Any = old.vectors
        grown: Any = new
        grown.vectors.copy_(vectors if vectors.shape == grown.vectors.shape else vectors.index_select(1, sources))


def idle_loss(model: Any, number: int) -> Any:
    """0, of which a prompt that a pass has no use for gets its gradient: all parameters of a step have one."""
    import torch

    from adapt.model.additions.domains import sets_of

    (prompts,) = sets_of(model)
    prompt: Any = prompts[number]
    return 0.0 * prompt(torch.empty(0, prompt.width, device=next(model.parameters()).device)).sum()

"""Puts the set of a domain into a model, with what the domain's text gives: its prototype, and words to begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapt.method.base import Setting
from adapt.method.domain_parameters import Words
from adapt.method.measurement import EPOCH, text_of
from adapt.model.additions.domain_modules import (
    attach_domains,
    choose_set,
    domains_of,
    own_parameters,
    prototype_of,
    sets_of,
)
from adapt.model.additions.table import ADDITIONS

DOCUMENTS = 256
"""Documents of a domain whose mean is its prototype, at the most."""


def take_set(
    model: Any,
    setting: Setting,
    by_domain: bool,
    kind: str,
    options: Mapping[str, Any],
    begin: Callable[[int, Words], None],
) -> list[str]:
    """Makes the set of the domain to be learnt, puts it into use, and leaves nothing else to be trained.

    Args:
        model: the model to be trained, in evaluation mode.
        setting: of the training.
        by_domain: whether each domain has a set of its own.
        kind: of the addition.
        options: of the addition, but for the number of sets.
        begin: fills a new set, by its number, with what it is to begin with; is given words of the domain.

    Returns:
        The names of the domains that the model has sets for; none if one set is for all.
    """
    model.requires_grad_(False)
    names = learn_prototype(model, setting.domain, sample_of(setting.texts, setting.seed)) if by_domain else []
    number, before = names.index(setting.domain) if by_domain else 0, sets_of(model)
    is_new = number == (len(before[0]) if before else 0)
    with torch.random.fork_rng([]):
        torch.manual_seed((setting.seed + (setting.number or 0)) % 2**63)
        if not before:
            ADDITIONS.load(kind)(model, sets=1, **options)
        for parameter in own_parameters(model, number):
            parameter.requires_grad_(True)
        if is_new:
            begin(number, partial(words_of, model, setting))
    choose_set(model, number)
    return names


def words_of(model: Any, setting: Setting, wanted: int) -> Tensor:
    """Words that vectors can begin as, int64 [wanted]: the beginning of the domain's text, documents drawn by the seed.

    Where that is streamed, or too short, torch's generator draws them from the vocabulary.
    """
    text = np.concatenate([np.empty(0, np.int64), *sample_of(setting.texts, setting.seed)])[:wanted]
    return torch.from_numpy(text) if len(text) == wanted else torch.randint(model.config.vocab_size, (wanted,))


def learn_prototype(model: Any, domain: str, sample: list[np.ndarray]) -> list[str]:
    """Gives the model the prototype of a domain, which is new to it or not, and tells all that it knows.

    Args:
        model: that has, or gets, domains.
        domain: its name.
        sample: documents of it.
    """
    if domains_of(model) is None:
        attach_domains(model, [])
    known = domains_of(model)
    assert known is not None
    known.learn(domain, prototype_of(model, sample))
    return list(known.names)


def sample_of(texts: Sequence[Path], seed: int) -> list[np.ndarray]:
    """Documents of a domain.

    Args:
        texts: folders of its prepared text; none where that is streamed.
        seed: by which they are drawn.
    """
    from adapt.corpus.sample_order import permute

    if not texts:
        return []
    stream = text_of(texts)
    wanted = np.arange(min(DOCUMENTS, stream.documents))
    return [stream.document(number) for number in permute(wanted, stream.documents, seed, EPOCH).tolist()]

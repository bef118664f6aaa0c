"""Adds a set of parameters for a domain to a model, and computes the domain's prototype from its text.

Tokens of the domain's text can also initialize the parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapt.corpus.sample_order import permute
from adapt.corpus.token_shards import text_of
from adapt.method import domain_parameters, measurement
from adapt.method.base import Setting
from adapt.model.additions import domain_modules
from adapt.model.additions.table import ADDITIONS

DOCUMENTS = 256
"""Maximum number of documents that are drawn from a domain, for example to compute its prototype (mean embedding)."""


def take_set(
    model: Any,
    setting: Setting,
    by_domain: bool,
    kind: str,
    options: Mapping[str, Any],
    begin: Callable[[int, domain_parameters.Words], None],
) -> list[str]:
    """Creates or selects the set of parameters of the domain to be learnt, and freezes everything else.

    Args:
        model: the model to be trained, in evaluation mode.
        setting: the training's setting.
        by_domain: whether each domain has its own set.
        kind: kind of the added parameters, such as `adapters`.
        options: options of the added parameters, without the number of sets.
        begin: function that initializes a new set. It takes the set's number, and a function that returns tokens of the
            domain.

    Returns:
        The names of the domains that have a set; empty if all domains share one set.
    """
    model.requires_grad_(False)
    names = learn_prototype(model, setting.domain, sample_of(setting.texts, setting.seed)) if by_domain else []
    number, before = names.index(setting.domain) if by_domain else 0, domain_modules.sets_of(model)
    is_new = number == (len(before[0]) if before else 0)
    with torch.random.fork_rng([]):
        torch.manual_seed((setting.seed + (setting.number or 0)) % 2**63)
        if not before:
            ADDITIONS.load(kind)(model, sets=1, **options)
        for parameter in domain_modules.own_parameters(model, number):
            parameter.requires_grad_(True)
        if is_new:
            begin(number, partial(words_of, model, setting))
    domain_modules.choose_set(model, number)
    return names


def words_of(model: Any, setting: Setting, wanted: int) -> Tensor:
    """Returns tokens for initializing vectors, int64 [wanted], from the start of randomly drawn documents.

    If the text is streamed or too short, the tokens are drawn from the vocabulary with torch's generator.
    """
    text = np.concatenate([np.empty(0, np.int64), *sample_of(setting.texts, setting.seed)])[:wanted]
    return torch.from_numpy(text) if len(text) == wanted else torch.randint(model.config.vocab_size, (wanted,))


def learn_prototype(model: Any, domain: str, sample: list[np.ndarray]) -> list[str]:
    """Computes a domain's prototype and stores it in the model. Returns the names of all domains of the model."""
    if domain_modules.domains_of(model) is None:
        domain_modules.attach_domains(model, [])
    known = domain_modules.domains_of(model)
    assert known is not None
    known.learn(domain, domain_modules.prototype_of(model, sample))
    return list(known.names)


def sample_of(texts: Sequence[Path], seed: int) -> list[np.ndarray]:
    """Returns randomly drawn documents of a domain, as tokens.

    Args:
        texts: folders of the domain's prepared text; empty if the text is streamed.
        seed: seed of the draw.
    """
    if not texts:
        return []
    stream = text_of(texts)
    wanted = np.arange(min(DOCUMENTS, stream.documents))
    return [stream.document(number) for number in permute(wanted, stream.documents, seed, measurement.EPOCH).tolist()]

"""Adds modules to every layer, with a separate set for each domain, and chooses the set to use for a text.

A model with such sets stores the name and a prototype of each domain. If the user names no domain, a text uses the set
of the domain whose prototype is nearest to the text's vector by Euclidean distance. A prototype is the mean vector of
some texts of the domain. The vector of a text is the mean of the last layer's states over the beginning of the text. No
set is in use when the vector is computed, so training the sets does not change the vector. Such mean states of a
pretrained model separate domains without training (Aharoni and Goldberg 2020, arXiv 2004.02105).

An adapter is a small bottleneck parallel to, or after, a layer's attention and feed-forward block. It computes f(x) = U
gelu(D x + a) + b with U [hidden, width] and D [width, hidden]. A sequential adapter changes the output y of a block to
y + f(y), before dropout and residual (Houlsby et al. 2019, arXiv 1902.00751; AdapterFusion, arXiv 2005.00247, adapts
the feed-forward block only). A parallel adapter changes y to y + s f(x), where x is the input of the block and s a
constant (He et al. 2022, arXiv 2110.04366). U and b start at 0, so that a new adapter changes nothing.

Experts are feed-forward blocks of a domain, which replace the model's own blocks while the domain is in use. Such
layers are called DEMix layers in arXiv 2108.05036. All domains share the model's attention, norms, embeddings and LM
head. If no expert is in use, the model computes with its own feed-forward blocks.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers.pytorch_utils import Conv1D

from adapt.model.additions.table import no_parts
from adapt.model.architecture import first_position
from adapt.model.layers import add_to_block, layers_of, outputs
from adapt.model.size import EXPERTS
from adapt.model.states import text_features
from adapt.support.errors import ModelError

DOMAINS = "domains"
"""Name of the module that stores the domains' names and prototypes, in the base model and in the list of additions."""


class DomainSets(nn.ModuleList):
    """A list of modules with one set of parameters per domain. One set is in use.

    If all domains share a set, it is the only module in the list.

    Args:
        sets: one module per domain, in the order of learning. Initially, the last module is in use. Each module has a
            method `fresh`, which returns a new, untrained module of the same kind and size.
    """

    def __init__(self, sets: Iterable[nn.Module] = ()) -> None:
        super().__init__(sets)
        self.chosen: int | None = len(self) - 1
        """Number of the set in use, from 0; None if the model computes without any of the sets."""

    @property
    def used(self) -> nn.Module | None:
        """The module in use; None if no set is in use."""
        return None if self.chosen is None else self[self.chosen]

    def added(self, states: Tensor) -> Tensor | None:
        """Computes the term that the set in use adds for hidden states. Returns None if no set is in use."""
        return None if (used := self.used) is None else used(states)


class DomainPrototypes(nn.Module):
    """The names and the prototypes of a model's domains. A prototype is the mean hidden state of a domain's texts.

    Args:
        names: names of the domains, in the order of learning.
        width: width of the hidden states.
    """

    vectors: Tensor
    """Prototype of each domain, [domains, H]."""

    def __init__(self, names: Sequence[str], width: int) -> None:
        super().__init__()
        self.names = list(names)
        self.register_buffer("vectors", torch.zeros(len(names), width))

    def learn(self, name: str, vector: Tensor) -> int:
        """Adds a domain with its prototype [H], or replaces a known domain's prototype. Returns the domain's number."""
        if name not in self.names:
            self.names.append(name)
            self.vectors = torch.cat((self.vectors, vector.to(self.vectors)[None]))
        number = self.names.index(name)
        self.vectors[number] = vector
        return number


def attach_domains(model: Any, names: Sequence[str]) -> None:
    """Adds a module to a base model that stores the names of domains and a table for their prototypes.

    Args:
        model: a Hugging Face `transformers` model, with or without its head.
        names: names of the domains.
    """
    device = next(model.parameters()).device
    model.base_model.add_module(DOMAINS, DomainPrototypes(names, model.config.hidden_size).to(device))


def domains_of(model: Any) -> DomainPrototypes | None:
    """Returns the module with the names and prototypes of a model's domains. None if the model has no domains."""
    module = getattr(model.base_model, DOMAINS, None)
    return module if isinstance(module, DomainPrototypes) else None


def sets_of(model: nn.Module) -> list[DomainSets]:
    """Returns all modules of a model that have a set for each domain."""
    return [module for module in model.modules() if isinstance(module, DomainSets)]


def own_parameters(model: nn.Module, number: int) -> list[nn.Parameter]:
    """Returns a domain's own parameters in all parts of a model. Creates the domain's sets if the domain is new.

    Args:
        model: a model with additions.
        number: number of the domain, from 0; at most the number of existing domains.
    """
    parameters: list[nn.Parameter] = []
    for sets in sets_of(model):
        if number == len(sets):
            newest: Any = sets[-1]
            sets.append(newest.fresh())
        parameters += sets[number].parameters()
    return parameters


def choose_set(model: nn.Module, number: int | None) -> None:
    """Makes a model use the sets of the domain with this number.

    Args:
        model: a model with additions.
        number: number of the domain, from 0; None to compute without any sets.
    """
    for sets in sets_of(model):
        sets.chosen = number


def choose_domain(model: Any, name: str) -> None:
    """Makes a model use the sets of the domain with this name.

    Raises:
        ModelError: the model has no sets for that domain.
    """
    known = domains_of(model)
    names = known.names if known else []
    if name not in names:
        raise no_parts("the model", name, names)
    choose_set(model, names.index(name))


@contextmanager
def without_sets(model: nn.Module) -> Iterator[None]:
    """Returns a context manager in which a model computes without its sets."""
    before = [(sets, sets.chosen) for sets in sets_of(model)]
    choose_set(model, None)
    try:
        yield
    finally:
        for sets, chosen in before:
            sets.chosen = chosen


BEGINNING = 256
"""Maximum number of tokens, from the beginning of a text, from which the text's vector is computed."""
_AT_ONCE = 16
_PIECE = 128


def domain_vectors(model: Any, texts: Sequence[np.ndarray]) -> np.ndarray:
    """Computes one vector per text, float32 [texts, H]: the mean of the states over the text's beginning.

    Args:
        model: a model in evaluation mode, on any device.
        texts: token ids of each text.
    """
    device = next(model.parameters()).device
    positions = getattr(model.config, "max_position_embeddings", None)
    piece = min(_PIECE, positions - first_position(model.config)) if positions else _PIECE
    with without_sets(model):
        return text_features(model, [text[:BEGINNING] for text in texts], device, piece, _AT_ONCE)


def prototype_of(model: Any, texts: Sequence[np.ndarray]) -> Tensor:
    """Computes the prototype of a domain from some of its texts, float32 [H]; 0 if there are no texts."""
    vectors = domain_vectors(model, texts)
    return torch.from_numpy(vectors.mean(0) if len(vectors) else np.zeros(vectors.shape[1], np.float32))


def nearest_domains(model: Any, vectors: np.ndarray) -> np.ndarray:
    """Finds the domain whose prototype is nearest to each vector.

    Args:
        model: a model with domains.
        vectors: vectors of texts from `domain_vectors`, [texts, H].

    Returns:
        Number of the nearest domain of each text, int64 [texts]. If several domains are equally near, the number of the
        first of them.
    """
    known = domains_of(model)
    assert known is not None
    prototypes = known.vectors.cpu().double().numpy()
    distances = ((vectors[:, None].astype(np.float64) - prototypes) ** 2).sum(-1)
    return np.asarray(distances.argmin(1))


def nearest_domain_to(model: Any, number: int) -> int:
    """Returns the number of the domain whose prototype is nearest to the prototype of another domain.

    If several domains are equally near, returns the first of them.

    Args:
        model: a model with at least two domains.
        number: number of the other domain, from 0.
    """
    known = domains_of(model)
    assert known is not None
    distances = (known.vectors.double() - known.vectors[number].double()).square().sum(-1)
    distances[number] = torch.inf
    return int(distances.argmin())


ADAPTERS = "adapters"
"""Name of adapters in the list of a model's additions, and of the submodule with the adapters of a layer."""
PLACES = {"both": ("attention", "feed_forward"), "attention": ("attention",), "feed_forward": ("feed_forward",)}
"""The blocks that have adapters, keyed by the name of the placement."""


class Bottleneck(nn.Module):
    """A bottleneck that computes f(x) = U gelu(D x + a) + b.

    Args:
        hidden: width of the hidden states.
        width: number of neurons in the bottleneck.
        device: device of the weights.
    """

    def __init__(self, hidden: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.down = nn.Linear(hidden, width, device=device)
        self.up = nn.Linear(width, hidden, device=device)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def fresh(self) -> "Bottleneck":
        """Returns a new, untrained bottleneck of the same size. D is drawn from torch's random generator."""
        return Bottleneck(self.down.in_features, self.down.out_features, self.down.weight.device)

    def forward(self, states: Tensor) -> Tensor:
        """Applies the bottleneck f to hidden states [..., hidden]."""
        added: Tensor = self.up(gelu(self.down(states)))
        return added


def attach_adapters(model: Any, sets: int, width: int, form: str, placement: str, scale: float) -> None:
    """Adds new adapters to each layer of a model, in place. The outputs of the model do not change yet.

    Args:
        model: a model of an architecture that `adapt.model.architecture` supports.
        sets: number of adapters per block: one for each domain, or one for all domains.
        width: number of neurons in each bottleneck.
        form: `sequential` or `parallel`.
        placement: a key of `PLACES`.
        scale: the factor s of parallel adapters.

    Raises:
        ModelError: the architecture is not supported.
    """
    for layer in layers_of(model):
        adapters = nn.ModuleDict()
        for block in PLACES[placement]:
            _, last = layer.ends(block)
            adapters[block] = DomainSets(Bottleneck(outputs(last), width, last.weight.device) for _ in range(sets))
            add_to_block(layer, block, adapters[block], form == "parallel", scale)
        layer.module.add_module(ADAPTERS, adapters)


class Expert(nn.Module):
    """One domain's copy of the layer `linear`."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = copy.deepcopy(linear)

    def fresh(self) -> "Expert":
        """Returns a new expert of the same size. `begin_experts` sets its weights."""
        return Expert(self.linear)

    def forward(self, states: Tensor) -> Tensor:
        """Applies the expert's linear layer to states."""
        output: Tensor = self.linear(states)
        return output


def attach_experts(model: Any, sets: int) -> None:
    """Gives each linear layer in a model's feed-forward blocks one copy per domain, in place.

    The linear layers stay the same objects with the same names and hooks. Only their class changes.

    Args:
        model: a model of an architecture that `adapt.model.architecture` supports.
        sets: number of domains with experts.

    Raises:
        ModelError: the architecture is not supported.
    """
    for layer in layers_of(model):
        for name in (*layer.pattern.inner, layer.pattern.outer):
            module = layer.part(name)
            if type(module) not in _PARTED:
                raise ModelError(
                    f"{layer.name}.{name} cannot have experts: it is a {type(module).__name__}",
                    "choose an architecture whose layers are torch's Linear, or GPT-2's Conv1D",
                )
            experts = DomainSets(Expert(module) for _ in range(sets))
            module.__class__ = _PARTED[type(module)]
            module.add_module(EXPERTS, experts)


@torch.no_grad()
def begin_experts(model: nn.Module, number: int, source: int | None) -> None:
    """Sets the weights of a domain's experts to copies of another domain's experts, or of the model's own blocks.

    Args:
        model: a model with experts.
        number: number of the domain whose experts are set, from 0.
        source: number of the domain to copy from; None to copy the model's own blocks.
    """
    for module in model.modules():
        if experts := _experts_of(module):
            expert: Any = experts[number]
            other: Any = module if source is None else experts[source]
            linear = other if source is None else other.linear
            for name, parameter in expert.linear.named_parameters():
                parameter.copy_(getattr(linear, name))


def has_experts(model: nn.Module) -> bool:
    """Returns whether a model has separate experts for domains."""
    return any(map(_experts_of, model.modules()))


def _experts_of(module: nn.Module) -> DomainSets | None:
    experts = getattr(module, EXPERTS, None)
    return experts if isinstance(experts, DomainSets) else None


def _computed(module: Any, states: Tensor, own: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies the expert in use to states, or the layer itself if no expert is in use."""
    used = module.domain_experts.used
    output: Tensor = own(states) if used is None else used(states)
    return output


class _PartedLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return _computed(self, input, super().forward)


class _PartedConv1D(Conv1D):
    def forward(self, x: Tensor) -> Tensor:
        return _computed(self, x, super().forward)


_PARTED: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: _PartedLinear, Conv1D: _PartedConv1D}

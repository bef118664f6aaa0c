"""Methods that add one set of parameters per domain, or one set for all domains, and train only these parameters.

The methods are `adapters`, `prompt`, `prefix` and `demix` (docs/science/equations.md, section "Against forgetting").
Only the set of the current domain is trained, so sets of earlier domains cannot change. If each domain has its own set,
nothing is forgotten, but the domain of a text must be known or predicted (`adapt.model.additions`). If all domains
train the same set, a text's domain need not be known, but the set can forget. With `sequence.mode: separate` each
domain gets its own model with one set (Adapter-ONE and Prompt-ONE of arXiv 2302.03241).

`adapt.method.domain_sets` adds sets to models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from adapt.config import Config, PositiveFloat, PositiveInt
from adapt.method.base import Added, AddedMemory, Method, Setting
from adapt.method.measurement import check_prepared
from adapt.model.additions.table import stored_additions, with_addition
from adapt.model.architecture import PROMPTS, check_units, max_sequence_length, try_unknown
from adapt.model.locate import CONFIG, read_json
from adapt.model.size import ModelSize
from adapt.objective.table import needs_decoder
from adapt.support.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


NAMED = "domains"
"""Name, in the list of a model's additions, of the module that stores domain names and prototypes (mean embeddings)."""
Words: TypeAlias = "Callable[[int], Tensor]"
"""A function that takes a number and returns this many tokens, for initializing vectors.

`adapt.method.domain_sets.words_of` is an implementation.
"""


class TrainsSets(Method):
    """Base class of methods that train a set of added parameters: the domain's own set, or one set for all domains."""

    adds_modules = True
    trains_head = trains_layers = False
    _names: Sequence[str] = ()
    """Names of the domains for which the model has sets."""

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Kind of the parameters that are added to the model, and their options without the number of sets."""
        raise NotImplementedError

    def set_elements(self, size: ModelSize) -> float:
        """Returns the number of elements in the matrices of one set."""
        raise NotImplementedError

    def check(self, config: Config, model: Path) -> None:
        check_units(model)
        self.check_sets(config, model)

    def check_sets(self, config: Config, model: Path) -> None:
        """Checks that the text is prepared if domains need prototypes, and that the model's sets are of this method.

        Raises:
            ConfigError: each domain has its own set, but the corpus is streamed; or the model has sets of this kind
                with other options.
            ModelError: the model already has added parameters of another kind.
        """
        method, (kind, options) = self.kind, self.addition
        can_share = hasattr(self.options, "per_domain")
        if self.by_domain:
            fix = f"set {method}.per_domain to false" if can_share else "choose another method.kind"
            check_prepared(config, "the mean embedding of a domain", fix)
        entries = stored_additions(model)
        for entry in entries:
            if entry["kind"] not in (kind, NAMED):
                raise ModelError(
                    f"{model} already has {entry['kind']}, with which method.kind {method} cannot be combined",
                    f"start from a model without {entry['kind']}, such as the model that this one was trained from",
                )
            for name, value in options.items() if entry["kind"] == kind else ():
                if entry.get(name) != value:
                    raise self._differs(model, name, value, entry.get(name))
        if can_share and entries and self.by_domain != any(entry["kind"] == NAMED for entry in entries):
            had = f"one set of {kind} for all domains" if self.by_domain else f"a set of {kind} for each domain"
            raise ConfigError(
                f"{method}.per_domain is {str(self.by_domain).lower()}, but {model} has {had}",
                f"set {method}.per_domain to {str(not self.by_domain).lower()}, or start from a model without {kind}",
            )

    def _differs(self, model: Path, name: str, value: Any, stored: Any) -> ConfigError:
        """Returns the error that the model's sets have another option. `stored` is None if they lack the option."""
        kind, is_field = self.addition[0], hasattr(self.options, name)
        option = f"{self.kind}.{name}" if is_field else f"option {name} of method.kind {self.kind}"
        had = "without this option" if stored is None else f"with {stored!r}"
        change = f"set {option} to {stored!r}, or " if is_field and stored is not None else ""
        return ConfigError(
            f"{option} is {value!r}, but {model} has {kind} that were created {had}",
            f"{change}start from a model without {kind}",
        )

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        added = self.set_elements(size)  # only these have gradients and optimizer state
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        from adapt.method.domain_sets import take_set

        self._names = take_set(model, setting, self.by_domain, *self.addition, partial(self.begin_set, model))
        return model

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        """Initializes a new set from the model or the text. Does nothing unless a subclass overrides it."""

    def resize(self, config: Any) -> None:
        kind, options = self.addition
        enter_sets(config, kind, self._names, options)


def enter_sets(config: Any, kind: str, names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Writes kind, options, number of sets and domain names of the added parameters into a model's config.

    Args:
        config: transformers' configuration object.
        kind: kind of the added parameters.
        names: names of the domains from `take_set`; empty if all domains share one set.
        options: options of the added parameters.
    """
    with_addition(config, kind, sets=max(len(names), 1), **options)
    if names:
        with_addition(config, NAMED, names=list(names))


@dataclass(frozen=True)
class AdaptersOptions:
    """Options of adapters, which are small bottlenecks in every layer (arXiv 1902.00751)."""

    width: PositiveInt = 64
    """Number of neurons in each bottleneck."""
    form: Literal["sequential", "parallel"] = "sequential"
    """`sequential`: an adapter changes the output of its block (arXiv 1902.00751). `parallel`: an adapter reads the
    input of its block and adds to the block's output (arXiv 2110.04366, with a width of 512, a scale of 4, and
    placement feed_forward)."""
    placement: Literal["both", "attention", "feed_forward"] = "both"
    """The blocks of a layer that have an adapter. AdapterFusion (arXiv 2005.00247) uses `feed_forward`."""
    scale: PositiveFloat = 1.0
    """Factor of the output of parallel adapters."""
    per_domain: bool = True
    """`true` gives each domain its own adapters, trained only on its text. `false` trains one set on all domains."""


class Adapters(TrainsSets):
    """Trains adapters and freezes the model."""

    Options = AdaptersOptions
    kind: ClassVar[str] = "adapters"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: AdaptersOptions) -> None:
        super().__init__(options)
        self.options: AdaptersOptions = options
        self.by_domain = options.per_domain

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        made = asdict(self.options)
        del made["per_domain"]
        return self.kind, made

    def set_elements(self, size: ModelSize) -> float:
        blocks = 2 if self.options.placement == "both" else 1
        return float(size.layers * blocks * 2 * size.hidden * self.options.width)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        return size.with_matrices(self.set_elements(size))  # every token passes through one domain's adapters


class Demix(TrainsSets):
    """DEMix: trains a feed-forward expert for each domain and freezes everything else (arXiv 2108.05036).

    The first expert is a copy of the model's feed-forward blocks. A later expert is a copy of the expert of the domain
    with the nearest prototype.
    """

    kind: ClassVar[str] = "demix"
    by_domain = True

    def settings(self) -> dict[str, Any]:
        return {"initial": "nearest"}  # earlier versions had this option

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        return "experts", {}

    def set_elements(self, size: ModelSize) -> float:
        return size.layers * (3 if size.gated else 2) * size.hidden * size.inner  # all feed-forward blocks

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        from adapt.model.additions import domain_modules  # imported here, because it loads torch

        nearest = domain_modules.nearest_domain_to(model, number) if number else None
        domain_modules.begin_experts(model, number, nearest)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        # each token passes through one of the experts
        return replace(size, parameters=size.parameters + len(trainings) * int(self.set_elements(size)))

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        return AddedMemory(trained=min(1.0, self.set_elements(size) / size.parameters))


@dataclass(frozen=True)
class PromptOptions:
    """Options of prompt tuning: trained vectors before each document (arXiv 2104.08691)."""

    length: PositiveInt = 100
    """Number of vectors in a prompt. The model accepts this many fewer tokens of text."""
    per_domain: bool = True
    """`true` gives each domain its own prompt, trained only on its text. `false` trains one prompt on all domains."""


PREFIXES = "prefixes"
"""Name, in the list of a model's additions, of the parameters that prefix tuning adds."""


@dataclass(frozen=True)
class PrefixOptions:
    """Options of prefix tuning: trained keys and values in every layer (arXiv 2101.00190)."""

    length: PositiveInt = 200
    """Number of trained keys to which each token attends, in addition to the keys of its document (10 and 200 in the
    paper)."""
    per_domain: bool = True
    """`true` gives each domain its own prefixes, trained only on its text. `false` trains one set on all domains."""


class TrainsVectors(TrainsSets):
    """Base class of methods that train vectors. The vectors are initialized from tokens of the domain's text."""

    goes_alone: ClassVar[bool] = True

    def __init__(self, options: PromptOptions | PrefixOptions) -> None:
        super().__init__(options)
        self.options: PromptOptions | PrefixOptions = options
        self.by_domain = options.per_domain

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        from adapt.model.additions.prompts import begin_prefixes, begin_prompt

        begin = begin_prompt if self.addition[0] == PROMPTS else begin_prefixes
        begin(model, number, words(self.options.length))


class Prompted(TrainsVectors):
    """Trains prompts and freezes the model."""

    Options = PromptOptions
    kind: ClassVar[str] = "prompt"

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        return PROMPTS, {"length": self.options.length}

    def set_elements(self, size: ModelSize) -> float:
        return float(self.options.length * size.hidden)

    def check(self, config: Config, model: Path) -> None:
        self.check_sets(config, model)
        check_room(config, model, "prompt.length", self.options.length)
        causal = needs_decoder(config.objective)
        if try_unknown(model, causal, config.model.trust_remote_code) not in ("packed", None):
            kind = read_json(model / CONFIG).get("model_type")
            raise ModelError(
                f"method.kind prompt needs packed documents, which {kind} models do not support",
                "choose another method.kind",
            )

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        return Added(per_document=self.options.length)


class Prefixed(TrainsVectors):
    """Trains prefixes and freezes the model."""

    Options = PrefixOptions
    kind: ClassVar[str] = "prefix"

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        return PREFIXES, {"length": self.options.length}

    def set_elements(self, size: ModelSize) -> float:
        return 2.0 * self.options.length * size.layers * size.attention

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        return Added(attended=self.options.length)  # every token also attends to the prefix


def check_room(config: Config, model: Path, field: str, length: int) -> None:
    """Checks that prompts leave enough positions for text.

    Args:
        config: the job's configuration.
        model: folder of the first model.
        field: name of the field with the prompts' length.
        length: length of a prompt [vectors].

    Raises:
        ConfigError: the prompt or a sequence length is too long. The error names the field to change.
    """
    longest = max_sequence_length(model)
    if longest is None:
        return
    has_prompts = any(entry["kind"] == PROMPTS for entry in stored_additions(model))
    left = longest if has_prompts else longest - length
    if left <= 0:
        raise ConfigError(
            f"{field} is {length}, but the model takes at most {longest} tokens, including the text",
            f"set {field} to {longest // 2} or less",
        )
    lengths = {
        "training.sequence_length": config.training.sequence_length,
        "evaluation.sequence_length": config.evaluation.sequence_length,
        **{
            f"training.phases, entry {number}: sequence_length": phase.sequence_length or 0
            for number, phase in enumerate(config.training.phases, start=1)
        },
    }
    for name, wanted in lengths.items():
        if wanted > left:
            vectors = "1 vector" if length == 1 else f"{length} vectors"
            raise ConfigError(
                f"{name} is {wanted}, but with a prompt of {vectors} the model takes at most {left} tokens of text",
                f"set {name.rpartition(': ')[2]} to {left} or less, or lower {field}",
            )

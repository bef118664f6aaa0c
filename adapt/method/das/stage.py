"""Stage `importance`: measures how much every unit of a model matters for what it knows, on some rows of a corpus.

Ray tasks measure batches of rows on the cluster's devices, and the stage adds up what they found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapt.config import Config
from adapt.method.das.options import DasOptions
from adapt.method.measurement import batches_at, model_on, sampled_rows, text_of
from adapt.model.locate import Pretrained
from adapt.model.size import model_size
from adapt.model.start import Start
from adapt.objective.table import objective_what
from adapt.runner import Done, Outcome, Stage
from adapt.runner.record import cost_of
from adapt.support.errors import TrainingError
from adapt.terminal.console import log

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from adapt.corpus.token_shards import TokenStream
    from adapt.method.das.criteria import Judged, MeasureSettings, Sums
    from adapt.model.layers import Kind
    from adapt.train.over_rows import Share


About = Literal["general", "domain"]
LEAST_PLASTICITY = 0.1
"""Below this mean of 1 - importance a layer hardly learns any more, and a warning says so."""
FREE_SHARE = 0.5
"""Above this share of the parameters in unprotected embeddings, the stage warns."""
SHOWN = 3
"""Warnings that are logged; all are in the record of the sequence."""


@dataclass(frozen=True)
class ImportanceMeasured:
    """What was measured. The importance itself is in `importance.safetensors`."""

    rows: int
    groups: int
    """Groups of rows, each with one gradient."""
    tokens: int
    """Tokens of text that were read."""
    device_seconds: float
    plasticity: dict[str, list[float]]
    """The mean of 1 - importance by kind of unit and layer."""
    plasticity_own: dict[str, list[float]]
    """The mean of 1 - importance as measured here alone, by kind of unit and layer."""
    least_plasticity: float
    embeddings_share: float | None = None
    """Share of the model's parameters that are embeddings, where it is known."""


@dataclass(frozen=True, eq=False)
class MeasureImportance(Stage[ImportanceMeasured]):
    """How important each unit is for what a model knows (arXiv 2302.03241, sections 4.1 and 4.3)."""

    kind = "importance"

    name: str
    config: Config
    options: DasOptions
    start: Start
    """The model that is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts that importance is measured on."""
    previous: Stage[ImportanceMeasured] | None
    """The importance that the new one is added to."""
    about: About
    """What the model knew before the first domain, as `das.general_importance` says, or the domain of the text."""

    def what(self) -> Mapping[str, Any]:
        """What is measured, on which sample, and how sizes become importance."""
        config, das = self.config, self.options
        sample = {
            "sequences": das.importance_sequences,
            "batch": das.importance_batch,
            "granularity": das.granularity,
            "sequence_length": config.training.sequence_length,
        }
        views = {
            **sample,
            "injected_dropout": das.injected_dropout,
            "attention_dropout": config.model.attention_dropout,
            "causal": config.objective.kind == "causal",
        }
        general = {"about": das.general_importance, **(views if das.general_importance == "kl" else {})}
        domain = {"about": "domain", **sample, "embeddings": das.embeddings, "objective": objective_what(config)}
        about: dict[str, Any] = dict(general if self.about == "general" else domain)
        if about["about"] != "random" and das.importance != "gate":
            about = {**(about if das.importance != "magnitude" else {}), "importance": das.importance}
        return {
            **about,
            "normalize": das.normalize,
            "model": self.start.digest,
            "seed": config.seed,
        }

    def needs(self) -> Mapping[str, float]:
        """It computes on all workers, as a training does."""
        from adapt.train.capacity.device import training_needs

        return training_needs(self.config.resources)

    def run(self, folder: Path, done: Done) -> Outcome[ImportanceMeasured]:
        """Measures on the cluster's devices."""
        from adapt.ray.runtime import await_resources, connect

        config, das = self.config, self.options
        size = model_size(self.start.pretrained.model)
        share = size.embedding_parameters / size.parameters if size else None
        for warning in unprotected(das, share) if self.about == "general" else ():  # before anything is trained
            log(f"warning: {warning}")
        connect(config.resources)
        await_resources(config.resources)
        previous = str(done[self.previous].path) if self.previous else None
        texts = tuple(str(done[text].path) for text in self.texts)
        measuring = Measuring(config, das, self.start.made(done), texts, previous, self.about)
        result = ImportanceMeasured(**measure_importance(measuring, folder), embeddings_share=share)
        left = plasticity_under(das, result.plasticity)
        for kind, layers in left.items():
            log(f"plasticity left, {kind} units by layer: {' '.join(f'{plasticity:.2f}' for plasticity in layers)}")
        for warning in islice(saturated(das, left), SHOWN):
            log(f"warning: {warning}")
        return Outcome(result, cost_of(result.device_seconds, config.resources.price_per_device_hour))


@dataclass(frozen=True)
class Measuring:
    """What is to be measured."""

    config: Config
    options: DasOptions
    pretrained: Pretrained
    """The model."""
    corpora: tuple[str, ...]
    """Folders of the prepared text."""
    previous: str | None
    """Folder of the importance so far."""
    about: About

    @property
    def text(self) -> TokenStream:
        """What rows are taken from: all of it as one stream."""
        return text_of(self.corpora)

    def rows(self) -> np.ndarray:
        """The rows to measure on, int64: the same of a text, whatever it is about; none where nothing is measured.

        Raises:
            DataError: there is no text.
        """
        import numpy as np

        is_random = self.about == "general" and self.options.general_importance == "random"
        if is_random or self.options.importance == "magnitude":
            return np.zeros(0, np.int64)
        wanted, length = self.options.importance_sequences, self.config.training.sequence_length
        return sampled_rows(self.corpora, length, wanted, self.config.seed, "importance")


def measure_importance(measuring: Measuring, folder: Path) -> dict[str, Any]:
    """Measures on the cluster this process is connected to, and writes `importance.safetensors` into `folder`.

    `das.plasticity_floor` is applied where importance is used, so that no domain's is made smaller again and again.

    Returns:
        See `ImportanceMeasured`.

    Raises:
        DataError: the corpus is empty.
        ModelError: the units of the model are not known, the importance so far is another model's, or there is no
            dropout to measure with.
        TrainingError: gradients are not finite.
    """
    import torch

    from adapt.method.das.importance import (
        Importance,
        accumulate,
        joined_importance,
        load_importance,
        normalize,
        normalize_tokens,
        plasticity,
        save_importance,
    )

    das, rows, model = measuring.options, measuring.rows(), _skeleton(measuring.pretrained)
    previous = load_importance(Path(measuring.previous), model) if measuring.previous else None
    units, tokens, figures = _measured(measuring, rows) if len(rows) else _without_text(measuring, model)
    own, own_tokens = normalize(units, das.normalize), normalize_tokens(tokens) if tokens is not None else None
    known, known_tokens = (previous.units, previous.embedding) if previous else (None, None)
    together = accumulate(known, own) if known else own
    save_importance(
        Importance(together, joined_importance(known_tokens, own_tokens), torch.from_numpy(rows)), model, folder
    )
    left = plasticity(together)
    return {
        "rows": len(rows),
        **figures,
        "plasticity": left,
        "plasticity_own": plasticity(own),
        "least_plasticity": min(min(layers) for layers in left.values()),
    }


def _skeleton(pretrained: Pretrained) -> PreTrainedModel:
    """The model's shape, without its weights."""
    import torch

    from adapt.model.load import model_class
    from adapt.model.safeguards import quiet
    from adapt.model.tokenizer import load_config

    config = load_config(pretrained.model, pretrained.trust_remote_code)
    with quiet(), torch.device("meta"):
        model: PreTrainedModel = model_class(config).from_config(config, trust_remote_code=pretrained.trust_remote_code)
    return model


def _without_text(measuring: Measuring, model: Any) -> tuple[dict[Kind, Tensor], Tensor | None, dict[str, Any]]:
    """Sizes of units that mean nothing, or those of their weights."""
    from adapt.method.das.criteria import magnitudes
    from adapt.method.das.importance import random_sizes
    from adapt.model.load import load_model

    figures = {"groups": 0, "tokens": 0, "device_seconds": 0.0}
    if measuring.about == "general" and measuring.options.general_importance == "random":
        return random_sizes(model, measuring.config.seed), None, figures
    pretrained, causal = measuring.pretrained, measuring.config.objective.kind == "causal"
    return magnitudes(load_model(pretrained.model, causal, pretrained.trust_remote_code)), None, figures


def _measured(measuring: Measuring, rows: np.ndarray) -> tuple[dict[Kind, Tensor], Tensor | None, dict[str, Any]]:
    """Sizes of units and tokens over the rows."""
    sums, seconds = gradients_on_cluster(measuring, rows)
    return sums.means, sums.tokens, {"groups": sums.groups, "tokens": sums.text, "device_seconds": seconds}


def plasticity_under(das: DasOptions, measured: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The plasticity of a record, as training has it under `das.plasticity_floor`; none where nothing is masked."""
    if das.soft_mask == "none":
        return {}
    return {kind: [max(plasticity, das.plasticity_floor) for plasticity in layers] for kind, layers in measured.items()}


def saturated(das: DasOptions, left: Mapping[str, list[float]]) -> Iterator[str]:
    """A warning for every layer and kind of unit that hardly learns any more; Adam undoes masks of gradients."""
    for kind, layers in left.items() if das.soft_mask == "update" else ():
        for number, plasticity in enumerate(layers):
            if plasticity < LEAST_PLASTICITY:
                yield (
                    f"layer {number}: {kind} units make {plasticity:.1%} of a step on average (1 - importance), so the "
                    "next domains hardly change them; das.plasticity_floor keeps them free"
                )


def unprotected(das: DasOptions, embeddings_share: float | None) -> list[str]:
    """A warning where most of the model is out of the masks' reach."""
    if embeddings_share is None or das.soft_mask == "none" or das.embeddings != "free":
        return []
    text = f"{embeddings_share:.0%} of the parameters are embeddings, which das.embeddings free leaves unprotected"
    return [f"{text}: try frequency"] if embeddings_share > FREE_SHARE else []


PASS_TOKENS = 4_096
"""Text in one pass where `training.micro_batch` does not say [tokens]: enough to keep a device busy."""


def gradients_on_cluster(measuring: Measuring, rows: np.ndarray) -> tuple[Sums, float]:
    """Batches of at most `das.importance_batch` rows, all of about one size, since small batches have large gradients.

    Returns:
        The sums over all batches, and the seconds that devices were held.

    Raises:
        ModelError: there is no dropout to measure with.
        TrainingError: gradients are not finite.
    """
    from adapt.train.over_rows import batches_of, over_rows

    batches = batches_of(rows, measuring.options.importance_batch)
    sequences = sequences_in_a_pass(measuring.config)
    parts, seconds = over_rows(partial(measure_share, measuring), batches, measuring.config, sequences)
    sums: Sums = reduce(add, parts)
    if not all(sizes.isfinite().all() for sizes in sums.units.values()):
        raise TrainingError(
            "gradients are not finite, so importance cannot be measured",
            "check the loss of the training before; a smaller training.learning_rate may help",
        )
    return sums, seconds


def measure_share(measuring: Measuring, device: torch.device, precision: str, share: Share) -> Sums:
    """One device's share of the batches."""
    from adapt.method.das.contrast import injected
    from adapt.method.das.criteria import gate_sizes, weight_sizes
    from adapt.model.layers import Gates

    model = model_on(device, measuring.config, measuring.pretrained)
    gates, (loss, marks) = Gates(model), _loss(measuring)
    views = injected(model, measuring.options.injected_dropout) if measuring.about == "general" else None
    settings = measure_settings(measuring, precision)
    batches = batches_at(measuring.text, share, measuring.config.training.sequence_length, marks)
    with views.on() if views else nullcontext():
        if measuring.options.importance == "gate":
            return gate_sizes(model, gates, loss, batches, settings)
        return weight_sizes(model, loss, batches, settings, measuring.options.importance)


def _loss(measuring: Measuring) -> tuple[Judged, tuple[str, ...]]:
    """What units are judged by, and the columns that it needs beside the tokens."""
    from adapt.method.das.contrast import Disagreement
    from adapt.model.tokenizer import load_tokenizer
    from adapt.objective.masking import make

    config, pretrained = measuring.config, measuring.pretrained
    if measuring.about == "general":
        return Disagreement(), ()
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    objective = make(config.objective, tokenizer, config.seed)
    return objective, objective.columns()


def measure_settings(measuring: Measuring, precision: str) -> MeasureSettings:
    """How gradients are taken in a precision that the device has."""
    import torch

    from adapt.method.das.criteria import MeasureSettings

    config, das, is_general = measuring.config, measuring.options, measuring.about == "general"
    views = 2 if is_general else 1
    return MeasureSettings(
        granularity=das.granularity,
        dropout_seed=config.seed if is_general else None,
        embeddings="free" if is_general else das.embeddings,  # which tokens general knowledge needs is not known
        rows=max(1, sequences_in_a_pass(config) // views),
        dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
    )


def sequences_in_a_pass(config: Config) -> int:
    """How many sequences pass a device at once: `training.micro_batch`, or enough to keep a device busy."""
    training = config.training
    return max(1, PASS_TOKENS // training.sequence_length) if training.micro_batch == "auto" else training.micro_batch

"""Combines a generator and a discriminator of replaced tokens in one module, so that one engine trains both.

The generator predicts masked tokens. Tokens drawn from its predictions replace the masks, and the discriminator says
for each token whether it was replaced (ELECTRA, arXiv 2003.10555; DeBERTaV3, arXiv 2111.09543). The discriminator is
the model that is used after the training. The generator is stored in a folder inside the discriminator's folder.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModelForMaskedLM,
    DebertaV2Model,
    DebertaV2PreTrainedModel,
    ElectraForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.activations import get_activation

from adapt.model import safeguards, sparse_prediction
from adapt.model.architecture import DETECTORS, check_detector, unequal_tables
from adapt.model.load import load_model, read_with_new_head, save_model
from adapt.model.locate import GENERATOR, Pretrained
from adapt.model.packing.isolation import keep_documents_apart, keep_states_apart
from adapt.model.packing.packed import Packed
from adapt.model.states import document_states, last_hidden_state
from adapt.model.tokenizer import load_config

TABLES = ("word_embeddings", "position_embeddings")
"""Names of the embedding tables that generator and discriminator can share."""


class MaskPredictions(nn.Module):
    """The head of DeBERTa-v3 for replaced tokens, with the names of the published weights.

    The state of a document's first token is added to each state of the document. A norm, a dense layer with activation
    and a linear layer follow, as in Microsoft's code.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = get_activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, states: Tensor, first: Tensor) -> Tensor:
        """Computes one logit per token, [...], from the token's state and its document's first state, [..., H] each."""
        logits: Tensor = self.classifier(self.activation(self.dense(self.LayerNorm(first + states)))).squeeze(-1)
        return logits


class DebertaV2ForPreTraining(DebertaV2PreTrainedModel):
    """DeBERTa-v2 or -v3 with the head that finds replaced tokens. transformers does not have this head."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.deberta = DebertaV2Model(config)
        self.mask_predictions = MaskPredictions(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Computes one logit per token, [B, L], for documents as padded rows."""
        states = self.deberta(input_ids, attention_mask=attention_mask).last_hidden_state
        logits: Tensor = self.mask_predictions(states, states[:, :1])
        return logits


_CLASSES: dict[str, Any] = {"electra": ElectraForPreTraining, "deberta-v2": DebertaV2ForPreTraining}
"""Class of a discriminator with its head, keyed by `model_type`."""


class DisentangledEmbedding(nn.Embedding):
    """The discriminator's embedding table: the generator's table plus a trained difference (arXiv 2111.09543, 3.3).

    E_D = sg(E_G) + E_delta: the discriminator's loss has gradients with respect to the difference E_delta only.

    Args:
        own: the discriminator's own table. The difference starts as `own` minus `base`.
        base: the generator's table, of the same shape.
    """

    def __init__(self, own: nn.Embedding, base: nn.Embedding) -> None:
        super().__init__(own.num_embeddings, own.embedding_dim, own.padding_idx, device="meta")
        self.base = base.weight
        self.weight = nn.Parameter(own.weight.detach() - base.weight.detach())

    def forward(self, input: Tensor) -> Tensor:
        """Looks up the sum of both tables."""
        return functional.embedding(input, self.base.detach()) + super().forward(input)


class Detector(nn.Module):
    """A generator, which is a masked language model, and a discriminator, whose head computes one number per token."""

    def __init__(self, generator: PreTrainedModel, discriminator: PreTrainedModel) -> None:
        super().__init__()
        self.generator = generator
        self.discriminator = discriminator

    @property
    def config(self) -> Any:
        """Config of the discriminator."""
        return self.discriminator.config

    @property
    def base_model(self) -> nn.Module:
        """The discriminator without its head."""
        base: nn.Module = self.discriminator.base_model
        return base

    @property
    def supports_gradient_checkpointing(self) -> bool:
        """Whether generator and discriminator can recompute their layers in the backward pass."""
        parts: tuple[Any, ...] = (self.generator, self.discriminator)
        return all(part.supports_gradient_checkpointing for part in parts)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Makes generator and discriminator recompute their layers in the backward pass."""
        for part in (self.generator, self.discriminator):
            part.gradient_checkpointing_enable(**options)

    def forward(
        self, packed: Packed, positions: Tensor, targets: Tensor, draws: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Fills the masks with tokens drawn from the generator's predictions, and scores each token.

        Args:
            packed: a sequence of N tokens, of which some are masked.
            positions: positions of the masked tokens, int64 [T].
            targets: the original tokens at these positions, int64 [T].
            draws: uniform random numbers in [0, 1) that choose the generator's tokens, float64 [T].

        Returns:
            Three values: the generator's cross entropy, summed over the masked tokens [nats]; the logit of the
            discriminator's probability that a token was replaced, [N]; and whether each token was replaced, bool [N]. A
            masked token does not count as replaced if the generator drew the original token.
        """
        loss, drawn = sparse_prediction.loss_and_samples(self.generator, packed, positions, targets, draws)
        filled = replace(packed, input_ids=packed.input_ids.scatter(1, positions[None], drawn[None]))
        replaced = torch.zeros_like(filled.input_ids[0], dtype=torch.bool).index_copy(0, positions, drawn != targets)
        states = last_hidden_state(self.discriminator, filled)
        head = getattr(self.discriminator, DETECTORS[self.config.model_type].rstrip("."))
        if not isinstance(head, MaskPredictions):
            return loss, head(states), replaced
        first, lengths = document_states(states, filled, "first"), filled.documents.cumulative.long().diff()
        return loss, head(states, first.repeat_interleave(lengths, 0, output_size=len(states))), replaced


def load_detector(
    pretrained: Pretrained, layers: int | None, embeddings: str, dropout: float | None = None, first: Any = None
) -> Detector:
    """Loads a discriminator and its generator, in evaluation mode, on the CPU, in fp32.

    Args:
        pretrained: the discriminator, and its generator if it has one. Heads that are not in the files get random
            weights.
        layers: number of the discriminator's first layers that a new generator copies; None for a third of all layers.
        embeddings: `shared`, `disentangled` or `separate` tables of embeddings; see `TABLES`.
        dropout: dropout of the attention weights; None keeps the models' values.
        first: another model, whose generator draws the tokens for a measurement. None means `pretrained`.

    Raises:
        ModelError: a model cannot be read or lacks weights of its layers; the two models' tables have different shapes
            (unless `embeddings` is `separate`); or the tables have different values and `embeddings` is `shared`.
    """
    discriminator, _ = load_discriminator(pretrained, dropout)
    generator = load_generator(first or pretrained, layers, dropout)
    if first is None:
        share_tables(generator, discriminator, embeddings, f"{pretrained.generator}")
    return Detector(generator, discriminator).eval()


def load_discriminator(pretrained: Pretrained, dropout: float | None = None) -> tuple[PreTrainedModel, bool]:
    """Loads a discriminator. Also returns whether its head has random weights, because the files have no head."""
    folder = pretrained.model
    check_detector(folder)
    config = load_config(folder, pretrained.trust_remote_code, dropout)
    with safeguards.quiet():
        model, new = read_with_new_head(_CLASSES[config.model_type], folder, config, pretrained.trust_remote_code)
    keep_states_apart(model.base_model)
    return model, bool(new)


def load_generator(pretrained: Pretrained, layers: int | None, dropout: float | None = None) -> PreTrainedModel:
    """Loads the generator of a discriminator. If there is none, copies the discriminator's first layers."""
    if pretrained.generator is not None:
        return load_model(
            pretrained.generator, trust_remote_code=pretrained.trust_remote_code, attention_dropout=dropout
        )
    config = load_config(pretrained.model, pretrained.trust_remote_code, dropout)
    config.num_hidden_layers = made_layers(config.num_hidden_layers, layers)
    config.tie_word_embeddings = True
    with safeguards.quiet():
        model, _ = read_with_new_head(AutoModelForMaskedLM, pretrained.model, config, pretrained.trust_remote_code)
        keep_documents_apart(model)
    return model


def made_layers(of: int, asked: int | None) -> int:
    """Returns the number of layers of a generator that copies the first layers of a model with `of` layers."""
    return -(-of // 3) if asked is None else asked


def share_tables(generator: Any, discriminator: Any, how: str, name_of_generator: str) -> None:
    """Changes a discriminator in place so that it uses its generator's tables of embeddings.

    Args:
        generator: a masked language model.
        discriminator: the discriminator.
        how: `shared`, `disentangled` or `separate`.
        name_of_generator: name of the generator, for messages.

    Raises:
        ModelError: the tables have different shapes, or `how` is `shared` and the tables have different values.
    """
    if how == "separate":
        return
    ours, theirs = discriminator.base_model.embeddings, generator.base_model.embeddings
    for name in TABLES:
        own, base = getattr(ours, name, None), getattr(theirs, name, None)
        if own is None or base is None:
            continue
        if own.weight.shape != base.weight.shape:
            raise unequal_tables(
                name_of_generator, f"{name} of shape {[*base.weight.shape]} instead of {[*own.weight.shape]}"
            )
        if how == "disentangled":
            setattr(ours, name, DisentangledEmbedding(own, base))
        elif torch.equal(own.weight, base.weight):
            own.weight = base.weight
        else:
            raise unequal_tables(name_of_generator, f"{name} whose values differ from the model's")


def save_detector(
    start: Pretrained,
    state: Mapping[str, Tensor],
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    layers: int | None,
    resize: Callable[[Any], None] = lambda config: None,
) -> None:
    """Writes a trained discriminator as a Hugging Face folder, and its generator in the subfolder `generator`.

    Args:
        start: the model that the training started from.
        state: complete weights of the trained `Detector`.
        tokenizer: the tokenizer of both models.
        folder: folder to write. The caller must make this atomic.
        layers: see `load_detector`.
        resize: function that changes the discriminator's config in place.
    """
    parts: dict[str, dict[str, Tensor]] = {"generator": {}, "discriminator": {}}
    for name, value in state.items():
        part, _, inner = name.partition(".")
        parts[part][inner] = value
    discriminator = parts["discriminator"]
    for name in [name for name in discriminator if name.endswith("_embeddings.base")]:
        weight = f"{name.removesuffix('.base')}.weight"
        discriminator[weight] = discriminator[weight] + discriminator.pop(name)
    kind = load_config(start.model, start.trust_remote_code).model_type
    save_model(
        start.model, discriminator, tokenizer, folder, start.trust_remote_code, resize=resize, kind=_CLASSES[kind]
    )

    def shortened(config: Any) -> None:
        config.tie_word_embeddings = True
        if start.generator is None:
            config.num_hidden_layers = made_layers(config.num_hidden_layers, layers)

    source = start.generator or start.model
    save_model(source, parts["generator"], tokenizer, folder / GENERATOR, start.trust_remote_code, resize=shortened)

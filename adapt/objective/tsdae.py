"""Defines the objective `tsdae`, which trains sentence vectors without labels (Wang et al. 2021, arXiv 2104.06979).

Words of a text are deleted, an encoder makes one vector of the rest, and a decoder rebuilds the text from the vector by
predicting each next token. Encoder and decoder are the same model with the same weights. In the decoder's pass,
attention is causal, and each layer also attends to the vector. The vector is the only key, so all attention weights
are 1, and no queries and keys are needed. Only a linear map of the vector remains (value and output projection), with
dropout, residual and layer norm. These new modules are the only new weights, and they are not exported.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from adapt.config import ObjectiveConfig
from adapt.model.layers import layers_of
from adapt.model.packing.packed import Documents, Packed, sent
from adapt.model.sparse_prediction import loss_at, losses_at, states_of
from adapt.model.states import document_states
from adapt.objective.masking import Masking, heads_of
from adapt.objective.objective import Batch, Corrupted
from adapt.objective.table import TsdaeOptions
from adapt.support.schema import WORD_STARTS

CROSS = "crossattention"
"""Name of the new module in each layer, as in transformers."""
POOLINGS = {"mean": "mean", "cls": "first"}
"""Names of poolings in `adapt.model.states.document_states`, keyed by the value of `tsdae.pooling`."""
DELETION, FIRST_WEIGHTS = range(2)
"""Numbers of independent streams of random numbers: one for deleted words, one for initial weights."""


class DecodedDocuments(Documents):
    """The documents of the decoder's pass. Attention within documents is causal, and each document has a vector.

    Args:
        documents: where each text begins and ends.
        vectors: the vector of each document, [D, H].
    """

    causal = True

    def __init__(self, documents: Documents, vectors: Tensor) -> None:
        super().__init__(documents.known, documents.longest, documents.device)
        self.vectors = vectors

    @cached_property
    def owner(self) -> Tensor:
        """Index of the document that each token belongs to, int64 [N]."""
        return sent(torch.arange(len(self)).repeat_interleave(self.known.long().diff()), self.device)


class VectorAttention(nn.Module):
    """Attention of the tokens of each document to the document's vector, with residual and layer norm as in BERT.

    Args:
        config: config of the model. Its settings have the same names as BERT's.
        generator: random generator for the initial weights. They have the distribution of new layers in transformers.
    """

    def __init__(self, config: Any, generator: torch.Generator) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.value, self.dense = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.weight_dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        for linear in (self.value, self.dense):
            nn.init.normal_(linear.weight, 0.0, config.initializer_range, generator=generator)
            nn.init.zeros_(linear.bias)

    def forward(self, states: Tensor, documents: DecodedDocuments) -> Tensor:
        """Returns the new states of the tokens, [1, N, H]."""
        values = self.value(documents.vectors).index_select(0, documents.owner)
        if self.training and self.weight_dropout.p > 0:  # attention weights are 1 before dropout
            weights = self.weight_dropout(values.new_ones(len(values), self.heads, 1))
            values = (values.unflatten(1, (self.heads, -1)) * weights).flatten(1)
        attended: Tensor = self.norm(self.dropout(self.dense(values))[None] + states)
        return attended


def _attend(module: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
    """Runs a layer's attention to the vector after its self-attention, in the decoder's pass only (a forward hook)."""
    documents = options.get("documents")
    if not isinstance(documents, DecodedDocuments):
        return output
    return (getattr(module, CROSS)(output[0], documents), *output[1:])


class Tsdae(Masking):
    """Deletes a share of each text's words, and rebuilds the text from one vector of the other words.

    Each word is deleted with probability `tsdae.delete_fraction`, independently of the others, as in the authors' code.
    Special tokens and at least one word of each text are kept. Each token but the first is predicted, and the loss is
    the mean over tokens. A text that is divided between two rows counts as two texts. In the second of these texts,
    [CLS] replaces the first token.
    """

    options: TsdaeOptions = TsdaeOptions()

    def __init__(self, config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        super().__init__(config, tokenizer, seed)
        first = tokenizer.cls_token_id
        self.first_id = int(tokenizer.bos_token_id if first is None else first)

    def columns(self) -> tuple[str, ...]:
        """Returns the name of the column that marks where words start."""
        return (WORD_STARTS,)

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Returns the units to delete: each word is one unit."""
        return heads_of(batch.marks[WORD_STARTS] | batch.starts)

    def corrupt(self, batch: Batch) -> Corrupted:
        """Deletes words from the encoder's input. The decoder predicts all tokens but the first of each text."""
        tokens = torch.where(batch.starts, self.first_id, batch.tokens)
        goes_on = batch.real & ~batch.starts
        positions = goes_on.roll(-1, dims=1)
        positions[:, -1] = False
        targets = tokens.roll(-1, dims=1)[positions]
        return Corrupted(tokens, batch.real, batch.starts, positions, targets, kept=self.kept(batch))

    def kept(self, batch: Batch) -> Tensor:
        """Returns which tokens the encoder sees, bool [B, L]. The draws depend only on (seed, epoch, row, position)."""
        eligible = self._is_ordinary[batch.tokens] & batch.real & ~batch.starts
        draws = self.draw(DELETION, batch).gather(1, self.heads(batch, eligible)).masked_fill(~eligible, -1.0)
        text = batch.starts.long().cumsum(1) - 1
        largest = torch.full_like(draws, -1.0).scatter_reduce_(1, text, draws, "amax").gather(1, text)
        kept: Tensor = ~eligible | (draws >= self.options.delete_fraction) | (draws == largest)
        return kept

    def prepare(self, model: nn.Module) -> None:
        """Adds attention to the text's vector to each layer. The initial weights depend only on the seed."""
        generator = torch.Generator().manual_seed((self.seed + FIRST_WEIGHTS) % 2**63)
        for layer in layers_of(model):
            attention: Any = layer.module.attention
            attention.add_module(CROSS, VectorAttention(model.config, generator).train(model.training))
            attention.register_forward_hook(_attend, with_kwargs=True)

    def exported(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights of the encoder with its head."""
        return {name: value for name, value in state.items() if f".{CROSS}." not in name}

    def loss(self, model: nn.Module, corrupted: Corrupted) -> Tensor:
        """Returns the summed cross entropy of the decoder's predictions [nats], float32 scalar."""
        return loss_at(model, self._decoded(model, corrupted), corrupted.asked(), corrupted.answers())

    def losses(self, model: nn.Module, corrupted: Corrupted) -> Tensor:
        """Returns the cross entropy of each of the decoder's predictions [nats], float32 [T]."""
        with torch.no_grad():
            return losses_at(model, self._decoded(model, corrupted), corrupted.asked(), corrupted.answers())

    def _decoded(self, model: nn.Module, corrupted: Corrupted) -> Packed:
        """Encodes the texts, and returns the input of the decoder's pass."""
        assert corrupted.kept is not None
        seen = replace(corrupted, real=corrupted.real & corrupted.kept)  # the tokens that the encoder sees
        words, whole = seen.packed(), corrupted.packed()
        vectors = document_states(states_of(model, words), words, POOLINGS[self.options.pooling])
        return Packed(whole.input_ids, whole.position_ids, DecodedDocuments(whole.documents, vectors))

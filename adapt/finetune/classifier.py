"""Builds and saves the classifier of a task (an encoder or decoder with a classification head); defines its loss."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from adapt.config import FinetuneConfig
from adapt.finetune.examples import ExampleBatch, Examples
from adapt.model.architecture import SAVABLE
from adapt.model.packing.attention import QuickDropout
from adapt.model.safeguards import check_finite, quiet
from adapt.model.start import MODEL_FOLDER
from adapt.model.states import document_states, hidden_states, last_hidden_state
from adapt.model.tokenizer import load_config
from adapt.runner.files import folder_aside
from adapt.support.errors import ModelError
from adapt.task.prepare_task import IGNORED, Facts


class Classifier(nn.Module):
    """Computes one vector of logits per unit, that is, per example or labelled token.

    Args:
        encoder: the model without its head (`base_model`). Its attention separates the packed documents.
        head: maps the states of U units [U, H] to logits [U, classes].
        pooling: how the states of a text become one state; not used for tasks of kind `tokens`.
    """

    def __init__(self, encoder: PreTrainedModel, head: nn.Module, pooling: str) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.pooling = pooling

    def forward(self, batch: ExampleBatch) -> Tensor:
        """Computes the logits of the batch's U examples or labelled tokens, [U, classes]."""
        states = last_hidden_state(self.encoder, batch.packed, batch.segments)
        logits: Tensor = self.head(unit_states(states, batch, self.pooling))
        return logits


def new_classifier(
    encoder: PreTrainedModel, finetune: FinetuneConfig, pooling: str, kind: str, classes: int
) -> Classifier:
    """Returns a classifier with a new head. The head's weights are drawn from torch's global generator."""
    head = LinearHead if kind == "tokens" else TextHead
    return Classifier(encoder, head(width(encoder), classes, finetune.dropout), pooling)


def unit_states(states: Tensor, batch: ExampleBatch, pooling: str) -> Tensor:
    """Selects or pools the states of all tokens [N, H]. Returns one state per example or labelled token, [U, H]."""
    if batch.places is not None:
        return states[batch.places]
    return document_states(states, batch.packed, pooling)[: len(batch.targets)]


def layer_states(encoder: PreTrainedModel, batch: ExampleBatch, pooling: str) -> Tensor:
    """Returns one state per example or labelled token from the embeddings and each layer, [U, layers + 1, H]."""
    by_layer = hidden_states(encoder, batch.packed, batch.segments)
    return torch.stack([unit_states(states, batch, pooling) for states in by_layer], 1)


def width(encoder: PreTrainedModel) -> int:
    """Returns the width of an encoder's hidden states, H."""
    hidden = getattr(encoder.config, "hidden_size", None)
    if not isinstance(hidden, int):
        what = f"the configuration of {type(encoder).__name__} has no hidden_size, the width of its hidden states"
        raise ModelError(what, "choose another model")
    return hidden


INITIAL_DEVIATION = 0.02
"""Standard deviation of the initial weights of new layers, as in BERT. Biases start at 0."""


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Returns a new linear layer that is initialized as in BERT."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=INITIAL_DEVIATION)
    nn.init.zeros_(layer.bias)
    return layer


class TextHead(nn.Module):
    """The classification head of Don't Stop Pretraining: dropout, H x H, tanh, dropout, H x classes."""

    def __init__(self, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = QuickDropout(dropout)
        self.dense = linear(hidden, hidden)
        self.out = linear(hidden, classes)

    def forward(self, states: Tensor) -> Tensor:
        """Turns states, [U, H], into logits, [U, classes]."""
        logits: Tensor = self.out(self.dropout(torch.tanh(self.dense(self.dropout(states)))))
        return logits


class LinearHead(nn.Module):
    """Dropout and one linear layer, for tasks of kind `tokens`."""

    def __init__(self, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = QuickDropout(dropout)
        self.out = linear(hidden, classes)

    def forward(self, states: Tensor) -> Tensor:
        """Turns states, [U, H], into logits, [U, classes]."""
        logits: Tensor = self.out(self.dropout(states))
        return logits


class MixedHead(nn.Module):
    """A learned mix of the layers' states (ELMo, arXiv 1802.05365, equation 1), then dropout and one linear layer.

    The mix is g sum_l softmax(w)_l h_l, where h_l is the state of layer l. Initially w = 0 and g = 1.
    """

    def __init__(self, layers: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))
        self.head = LinearHead(hidden, classes, dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Turns the states of all layers, [U, layers, H], into logits, [U, classes]."""
        mixed = self.scale * torch.einsum("l,ulh->uh", self.weights.softmax(0), states)
        logits: Tensor = self.head(mixed)
        return logits


class TaskLoss:
    """Computes the mean loss of the U units of a batch [nats]. A unit is an example or a labelled token.

    Args:
        kind: kind of the task. The loss is the binary cross-entropy of each class for `multi_label`, and the
            cross-entropy for other kinds.
        weights: weights of the classes, float32 [classes], see `balanced`; None for equal weights.
    """

    def __init__(self, kind: str, weights: Tensor | None = None) -> None:
        self.multi_label = kind == "multi_label"
        self.weights = weights

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean loss for logits, [U, classes], and targets as in `ExampleBatch`; 0 if there are no units."""
        logits = logits.float()
        if not len(targets):
            return logits.sum()
        if self.multi_label:
            return binary_cross_entropy_with_logits(logits, targets, pos_weight=self.weights)
        return cross_entropy(logits, targets, self.weights)

    def masses(self, examples: Examples) -> np.ndarray:
        """Returns the weight of each example in a mean of losses, float64 [E].

        For tasks of kind `tokens`, this is the sum of the class weights of the example's labelled tokens. For other
        tasks, it is the weight of the example's class. Without class weights, and for `multi_label`, each example or
        labelled token has weight 1.
        """
        if self.multi_label or self.weights is None:
            return examples.units.astype(float)
        counts, weights = examples.targets != IGNORED, self.weights.cpu().double().numpy()
        of_targets = np.where(counts, weights[np.where(counts, examples.targets, 0)], 0.0)
        if not examples.by_token:
            return of_targets
        before = np.concatenate(([0.0], of_targets.cumsum()))
        return np.asarray(before[examples.ends[1:]] - before[examples.ends[:-1]])

    def probabilities(self, logits: Tensor) -> Tensor:
        """Returns probabilities, float32 [U, classes]. They sum to 1, except for `multi_label`."""
        return logits.float().sigmoid() if self.multi_label else logits.float().softmax(-1)


def balanced(targets: np.ndarray, classes: int) -> Tensor:
    """Returns class weights that give all classes the same total weight.

    Args:
        targets: targets of the train split, as in `Examples`.
        classes: number of classes.

    Returns:
        float32 [classes]: units / (classes x units of the class), the formula of scikit-learn, and 0 for a class
        without units. For multi-label targets [E, classes], the weight of a class's positive examples: negatives /
        positives, or 1 if there are no negatives.
    """
    if targets.ndim == 2:
        positives = targets.sum(0)
        negatives = len(targets) - positives
        weights = np.where(negatives > 0, negatives / np.maximum(positives, 1), 1.0)
    else:
        counts = np.bincount(targets[targets != IGNORED], minlength=classes)
        weights = np.where(counts > 0, counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1)), 0.0)
    return torch.from_numpy(weights.astype(np.float32))


_CHECKED_EXAMPLES = 4
_TOLERANCE = 1e-3
_PROBLEMS = {"single_label": "single_label_classification", "multi_label": "multi_label_classification", "tokens": None}


def save_classifier(
    classifier: Classifier,
    start: Path,
    facts: Facts,
    examples: Examples,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
) -> None:
    """Writes `model/` with config.json, model.safetensors and the tokenizer into a folder, atomically.

    Args:
        classifier: the trained classifier in evaluation mode, of a model type in `SAVABLE`.
        start: folder of the model that was fine-tuned.
        facts: name, kind and classes of the task. The classes are written to config.json.
        examples: examples for comparing the logits of transformers' classifier with ours.
        tokenizer: the model's tokenizer.
        folder: the folder in which `model/` is written.

    Raises:
        ModelError: transformers' classifier gives other logits, or a weight is not finite.
    """
    with quiet():
        model = _filled(classifier, start, facts)
        for name, parameter in model.named_parameters():
            check_finite(parameter, name, "the fine-tuned model", "lower finetune.learning_rate, and run the job again")
        _check(model, classifier, examples)
        with folder_aside(folder / MODEL_FOLDER) as aside:
            model.save_pretrained(aside)
            tokenizer.save_pretrained(aside)
            for file in aside.glob("*.safetensors"):  # lets other users read the files
                file.chmod(0o644)


def _filled(classifier: Classifier, start: Path, facts: Facts) -> Any:
    """Returns the classifier of transformers on the CPU, with our weights."""
    config: Any = load_config(start)
    head: Any = classifier.head
    config.id2label = dict(enumerate(facts.labels))
    config.label2id = {label: number for number, label in enumerate(facts.labels)}
    config.problem_type = _PROBLEMS[facts.kind]
    config.classifier_dropout = head.dropout.p
    factory: Any = AutoModelForTokenClassification if facts.kind == "tokens" else AutoModelForSequenceClassification
    model = factory.from_config(config, dtype=torch.float32)
    hidden, outer = SAVABLE[config.model_type]
    layers = {"out": "classifier"} if facts.kind == "tokens" else {"dense": hidden, "out": outer}
    state = {f"{model.base_model_prefix}.{name}": tensor for name, tensor in classifier.encoder.state_dict().items()}
    for ours, theirs in layers.items():
        layer = head.get_submodule(ours)
        state |= {f"{theirs}.{name}": tensor for name, tensor in layer.state_dict().items()}
    model.load_state_dict({name: tensor.cpu() for name, tensor in state.items()})
    return model.eval()


@torch.inference_mode()
def _check(model: Any, classifier: Classifier, examples: Examples) -> None:
    device = next(classifier.parameters()).device
    for number in range(min(_CHECKED_EXAMPLES, len(examples))):
        batch = examples.batch(np.array([number]), device)
        ours = classifier(batch).float().cpu()
        unpadded = slice(int(examples.ends[number + 1] - examples.ends[number]))
        options = {"token_type_ids": batch.segments[:, unpadded].cpu()} if model.config.type_vocab_size > 1 else {}
        logits: Tensor = model(input_ids=batch.packed.input_ids[:, unpadded].cpu(), **options).logits
        theirs = logits if batch.places is None else logits[0, batch.places.cpu()]
        if not torch.allclose(theirs, ours, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise ModelError(
                f"the fine-tuned model is not saved, because {type(model).__name__} computes other logits with its"
                " weights",
                "leave finetune.save_model off, and report this as a bug",
            )

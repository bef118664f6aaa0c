"""The modes of fine-tuning. Each mode is a function that trains a classifier and returns a `Learned`.

`fine_tune` trains the whole encoder, and `lora` trains low-rank adapters. `feature_extraction` and `linear_probe`
leave the encoder unchanged and compute its states once. To Tune or Not to Tune? (Peters et al., W19-4302) compares such
features with fine-tuning.

`fine_tune` trains only those rows of the word embedding that the train split uses. The embedding is a large part of a
small model (88% of BERT-tiny, half of a MiniLM), and AdamW would read and write all of it in every step. Rows of unused
tokens have no gradient. Only weight decay would change them, by less than 0.1% over a run.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from adapt.config import FinetuneConfig
from adapt.finetune.classifier import (
    Classifier,
    MixedHead,
    TaskLoss,
    balanced,
    layer_states,
    new_classifier,
    unit_states,
    width,
)
from adapt.finetune.examples import ExampleBatch, Examples, Problem, in_passes
from adapt.finetune.finetune_loop import FinetuneDevice, FinetuneSettings, History, LoopInput, train
from adapt.model.states import last_hidden_state
from adapt.task.dataset import IGNORED


@dataclass(frozen=True)
class Learned:
    """The result of a training in any mode."""

    predict: Callable[[str], np.ndarray]
    """Function that computes the class probabilities of the examples (for `tokens`: labelled tokens) of a split, given
    the split's name: float32 [U, classes]."""
    history: History
    trained_parameters: int
    classifier: Classifier | None = None
    """The trained model; None for modes that do not change the encoder."""


class Tuning:
    """A classifier with its loss and predictions, for the training loop.

    Args:
        encoder: the encoder on the CPU. It is changed, and moved to the device.
        problem: the task.
        settings: the settings of the run.
        seed: seed of the new layers and of dropout.
        place: device and precision.
    """

    def __init__(
        self, encoder: PreTrainedModel, problem: Problem, settings: FinetuneSettings, seed: int, place: FinetuneDevice
    ) -> None:
        finetune, facts = settings.finetune, problem.facts
        self.problem, self.place = problem, place
        torch.manual_seed(seed)
        if finetune.mode == "lora":
            add_lora(encoder, finetune)
        else:
            train_used_words(encoder, problem.examples["train"].tokens)
        classifier = new_classifier(encoder, finetune, settings.pooling, facts.kind, len(facts.labels))
        self.classifier = classifier.to(place.device)
        self._loss = loss_of(problem, finetune, place)
        self.masses = self._loss.masses(problem.examples["train"])

    def loss(self, chosen: np.ndarray) -> Tensor:
        """Returns the mean loss of the train examples with these indices."""
        batch = self.problem.examples["train"].batch(chosen, self.place.device)
        with self.place.autocast():
            logits = self.classifier(batch)
        return self._loss(logits, batch.targets)

    def predict(self, name: str) -> np.ndarray:
        """Returns the class probabilities of the examples or labelled tokens of a split, float32 [U, classes]."""
        with self.place.autocast():
            return in_passes(self._probabilities, self.problem.examples[name], self.place.device).numpy()

    def _probabilities(self, batch: ExampleBatch) -> Tensor:
        return self._loss.probabilities(self.classifier(batch))


def tune_classifier(
    encoder: PreTrainedModel, problem: Problem, settings: FinetuneSettings, seed: int, place: FinetuneDevice
) -> Learned:
    """Trains an encoder and a new head; see `Tuning` and `adapt.finetune.finetune_loop`.

    Raises:
        TrainingError: the loss is not finite.
    """
    tuning = Tuning(encoder, problem, settings, seed, place)
    course = LoopInput(
        tuning.classifier,
        tuning.loss,
        lambda: problem.score("dev", tuning.predict("dev")),
        tuning.masses,
    )
    history = train(course, settings, seed, place.loss_scaling)
    trained = trained_numbers(tuning.classifier)
    train_all_words(encoder)
    return Learned(tuning.predict, history, trained, tuning.classifier)


def add_lora(encoder: PreTrainedModel, finetune: FinetuneConfig) -> None:
    """Freezes an encoder and adds low-rank matrices to each of its linear layers (arXiv 2106.09685), in place."""
    encoder.requires_grad_(False)
    settings = LoraConfig(
        r=finetune.lora_rank,
        lora_alpha=finetune.lora_alpha,  # type: ignore[arg-type]  # a factor, which need not be an integer
        target_modules="all-linear",
    )
    inject_adapter_in_model(settings, encoder)


def loss_of(problem: Problem, finetune: FinetuneConfig, place: FinetuneDevice) -> TaskLoss:
    """Returns the loss of a task, with the configured class weights."""
    if finetune.class_weights == "none":
        return TaskLoss(problem.facts.kind)
    weights = balanced(problem.examples["train"].targets, len(problem.facts.labels))
    return TaskLoss(problem.facts.kind, weights.to(place.device))


def trained_numbers(module: nn.Module) -> int:
    """Returns the number of trainable parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


REGULARIZATION = (0.01, 0.1, 1.0, 10.0)
"""Values of scikit-learn's C (inverse regularization) to try. The value with the best dev score is used."""
ITERATIONS = 1000
UNITS_AT_ONCE = 4096


def extract_features(
    encoder: PreTrainedModel, problem: Problem, settings: FinetuneSettings, seed: int, place: FinetuneDevice
) -> Learned:
    """Fits logistic regression on the standardized last-layer states of the units (examples or labelled tokens).

    The dev score chooses the strength of regularization. The result does not depend on the seed.
    """

    def state(batch: ExampleBatch) -> Tensor:
        return unit_states(last_hidden_state(encoder, batch.packed, batch.segments), batch, settings.pooling).float()

    features = {name: values.numpy() for name, values in _computed(encoder, problem, place, state).items()}
    targets = _unit_targets(problem.examples["train"])
    balanced = "balanced" if settings.finetune.class_weights == "balanced" else None

    def fitted(strength: float) -> Pipeline:
        model = LogisticRegression(C=strength, max_iter=ITERATIONS, class_weight=balanced)
        is_multi_label = problem.facts.kind == "multi_label"
        return make_pipeline(StandardScaler(), OneVsRestClassifier(model) if is_multi_label else model).fit(
            features["train"], targets
        )

    def probabilities(model: Pipeline, name: str) -> np.ndarray:
        by_class = np.zeros((len(features[name]), len(problem.facts.labels)), np.float32)
        by_class[:, np.asarray(model.classes_, int)] = model.predict_proba(
            features[name]
        )  # classes without train examples have probability 0
        return by_class

    candidates = [fitted(strength) for strength in REGULARIZATION]
    scores = [problem.score("dev", probabilities(model, "dev")) for model in candidates]
    best = candidates[int(np.argmax(scores))]
    classes = 1 if len(best.classes_) == 2 and targets.ndim == 1 else len(best.classes_)
    trained = classes * (features["train"].shape[1] + 1)
    return Learned(lambda name: probabilities(best, name), History(), trained)


def probe(
    encoder: PreTrainedModel, problem: Problem, settings: FinetuneSettings, seed: int, place: FinetuneDevice
) -> Learned:
    """Trains a linear layer on a learned mix of the states in all layers, with the training loop of `fine_tune`.

    The states are those of the units, which are examples or labelled tokens.

    Raises:
        TrainingError: the loss is not finite.
    """
    facts, examples = problem.facts, problem.examples
    features = _computed(encoder, problem, place, lambda batch: layer_states(encoder, batch, settings.pooling))
    targets = torch.from_numpy(_unit_targets(examples["train"]))
    units = examples["train"].units
    begins = np.cumsum(units) - units
    torch.manual_seed(seed)
    layers = features["train"].shape[1]
    head = MixedHead(layers, width(encoder), len(facts.labels), settings.finetune.dropout).to(place.device)
    loss = loss_of(problem, settings.finetune, place)

    def batch_loss(chosen: np.ndarray) -> Tensor:
        indices = torch.from_numpy(np.concatenate([np.arange(begins[n], begins[n] + units[n]) for n in chosen]))
        return loss(head(features["train"][indices].to(place.device).float()), targets[indices].to(place.device))

    @torch.inference_mode()
    def predict(name: str) -> np.ndarray:
        parts = features[name].split(UNITS_AT_ONCE)
        predicted = [loss.probabilities(head(part.to(place.device).float())).cpu() for part in parts]
        return torch.cat(predicted).numpy()

    masses = loss.masses(examples["train"])
    course = LoopInput(head, batch_loss, lambda: problem.score("dev", predict("dev")), masses)
    return Learned(predict, train(course, settings, seed), trained_numbers(head))


def _computed(
    encoder: PreTrainedModel, problem: Problem, place: FinetuneDevice, function: Callable[[ExampleBatch], Tensor]
) -> dict[str, Tensor]:
    """Computes `function` for all examples or labelled tokens of every split; returns values by split, on the CPU."""
    nn.Module.to(encoder, place.device).eval()
    with place.autocast():
        return {name: in_passes(function, examples, place.device) for name, examples in problem.examples.items()}


def _unit_targets(examples: Examples) -> np.ndarray:
    return examples.targets[examples.targets != IGNORED] if examples.by_token else examples.targets


class TrainedWords(nn.Module):
    """An embedding that trains only the rows of used tokens. The other rows stay fixed.

    Args:
        table: the whole embedding, float32 [V, H].
        used: ids of the rows to train.
    """

    place: Tensor
    """For each token id, its index in `rows`, or -1 if its row is not trained: int64 [V]."""
    table: Tensor

    def __init__(self, table: Tensor, used: Tensor) -> None:
        super().__init__()
        place = torch.full((len(table),), -1, dtype=torch.int64, device=table.device)
        place[used] = torch.arange(len(used), device=table.device)
        self.register_buffer("place", place)
        self.register_buffer("table", table.detach())
        self.rows = nn.Parameter(table.detach()[used])

    def forward(self, ids: Tensor) -> Tensor:
        """Looks up ids, [...], and returns vectors, [..., H]. In training mode, ids of padding may get any vector."""
        places = self.place[ids]
        vectors = embedding(places.clamp(min=0), self.rows)
        return vectors if self.training else torch.where((places >= 0)[..., None], vectors, embedding(ids, self.table))

    def whole(self) -> nn.Embedding:
        """Returns an ordinary embedding with the same vectors, including the trained ones."""
        table = self.table.clone()
        table[self.place >= 0] = self.rows.detach()[self.place[self.place >= 0]]
        words: nn.Embedding = nn.Embedding.from_pretrained(table)
        return words


def train_used_words(encoder: PreTrainedModel, tokens: np.ndarray) -> None:
    """Replaces an encoder's word embedding by `TrainedWords`, if it is an ordinary embedding."""
    table = encoder.get_input_embeddings()
    if type(table) is nn.Embedding:
        used = torch.from_numpy(np.unique(tokens)).to(table.weight.device)
        encoder.set_input_embeddings(TrainedWords(table.weight, used))


def train_all_words(encoder: PreTrainedModel) -> None:
    """Replaces `TrainedWords` in an encoder by an ordinary embedding with the trained vectors."""
    words = encoder.get_input_embeddings()
    if isinstance(words, TrainedWords):
        encoder.set_input_embeddings(words.whole())

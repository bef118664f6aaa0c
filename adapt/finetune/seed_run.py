"""Fine-tunes one model inside its Ray task: loads it, trains it on the task in one of the modes, and predicts.

Each mode is a function that trains a classifier and returns a `Learned`. `fine_tune` trains the whole encoder, and
`lora` trains low-rank adapters. `feature_extraction` and `linear_probe` leave the encoder unchanged and compute its
states once. To Tune or Not to Tune? (Peters et al., W19-4302) compares such features with fine-tuning.

`fine_tune` trains only those rows of the word embedding that the train split uses. The embedding is a large part of a
small model (88% of BERT-tiny, half of a MiniLM), and AdamW would read and write all of it in every step. Rows of unused
tokens have no gradient. Only weight decay would change them, by less than 0.1% over a run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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

from adapt.config import Config, FinetuneConfig
from adapt.finetune.classifier import (
    Classifier,
    MixedHead,
    TaskLoss,
    balanced,
    layer_states,
    new_classifier,
    save_classifier,
    unit_states,
    width,
)
from adapt.finetune.examples import ExampleBatch, Examples, Problem, in_passes
from adapt.finetune.finetune_loop import FinetuneDevice, FinetuneSettings, History, LoopInput, train
from adapt.finetune.metrics import task_scores
from adapt.finetune.ray_task import RunResult
from adapt.model import detector, locate
from adapt.model.additions.domain_modules import choose_domain, domain_vectors, domains_of, nearest_domains
from adapt.model.additions.table import refuse_additions
from adapt.model.architecture import check_savable, is_detector
from adapt.model.load import load_model
from adapt.model.states import last_hidden_state
from adapt.model.tokenizer import is_decoder, load_config, load_tokenizer, sees_both_sides
from adapt.task.prepare_task import IGNORED, SPLITS, Facts, Split
from adapt.train import model_options, worker_process


@dataclass(frozen=True)
class Learned:
    """The result of training in one of the modes."""

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
    """Trains an encoder and a new head; see `Tuning` and `adapt.finetune.finetune_loop`."""
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
    """Returns the number of trainable parameters of a module."""
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

    There is one state per layer for each unit, that is, for each example or labelled token.
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
    """Applies a function to all examples of each split. Returns one value per unit on the CPU, keyed by split."""
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
        """Returns vectors, [..., H], for token ids, [...]. In training mode, padding tokens may get wrong vectors."""
        places = self.place[ids]
        vectors = embedding(places.clamp(min=0), self.rows)
        return vectors if self.training else torch.where((places >= 0)[..., None], vectors, embedding(ids, self.table))

    def whole(self) -> nn.Embedding:
        """Returns an ordinary embedding with the same vectors, including the trained vectors."""
        table = self.table.clone()
        table[self.place >= 0] = self.rows.detach()[self.place[self.place >= 0]]
        words: nn.Embedding = nn.Embedding.from_pretrained(table)
        return words


def train_used_words(encoder: PreTrainedModel, tokens: np.ndarray) -> None:
    """Replaces an encoder's word embedding with `TrainedWords`, if it is an ordinary embedding."""
    table = encoder.get_input_embeddings()
    if type(table) is nn.Embedding:
        used = torch.from_numpy(np.unique(tokens)).to(table.weight.device)
        encoder.set_input_embeddings(TrainedWords(table.weight, used))


def train_all_words(encoder: PreTrainedModel) -> None:
    """Replaces `TrainedWords` in an encoder with an ordinary embedding that has the trained vectors."""
    words = encoder.get_input_embeddings()
    if isinstance(words, TrainedWords):
        encoder.set_input_embeddings(words.whole())


MODES = {
    "fine_tune": tune_classifier,
    "lora": tune_classifier,
    "feature_extraction": extract_features,
    "linear_probe": probe,
}

ROUTED_EXAMPLES = 256
"""Maximum number of train examples that are averaged to find the nearest domain."""


def finetune_work(config: Config, start: locate.Pretrained, task: Path, seed: int, folder: Path) -> RunResult:
    """Fine-tunes a model on a task and evaluates it. With `finetune.save_model`, the model is written into `folder`.

    Without a GPU, the process uses as many threads as the task has reserved CPU cores.

    Raises:
        ConfigError: `finetune.save_model` is set and the model cannot be saved.
        DataError: a split is empty.
        TrainingError: the loss is not finite.
    """
    begin = time.perf_counter()
    if not torch.cuda.is_available():
        worker_process.use_threads(config.finetune.cpus_per_seed)
    finetune, place = config.finetune, FinetuneDevice.here(config.training.precision)
    of = load_config(start.model, start.trust_remote_code)
    is_turned = sees_both_sides(of)
    causal = is_decoder(of) and not is_turned
    pooling = "last" if causal else "mean" if is_turned else "first"
    settings = FinetuneSettings.of(finetune, start.model, pooling, len(Split.load(task, "train")))
    if finetune.save_model:
        refuse_additions(start.model, "fine-tuned with finetune.save_model")
        pooled = Facts.load(task).kind != "tokens"
        check_savable(start.model, finetune.mode, settings.pooling if pooled else "first")
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    closing = {tokenizer.sep_token_id, tokenizer.eos_token_id} - {None}
    problem = Problem.load(task, settings.max_length, closing)
    dropout = config.model.attention_dropout
    if is_detector(start.model):
        model, _ = detector.load_discriminator(start, dropout)
    else:
        model = load_model(start.model, causal, start.trust_remote_code, dropout)
    parts = _domain_parts(model, problem, finetune.domain, place)
    model_options.apply_options(model, replace(config.training, compile=False), place.device)
    encoder: Any = model.base_model
    learned = MODES[finetune.mode](encoder, problem, settings, seed, place)
    probabilities = {name: learned.predict(name) for name in ("dev", "test")}
    if finetune.save_model:
        assert learned.classifier
        save_classifier(learned.classifier, start.model, problem.facts, problem.examples["test"], tokenizer, folder)
    metrics = _metrics(problem, settings, learned, probabilities) | {"mode": finetune.mode, "seed": seed, **parts}
    metrics["seconds"] = time.perf_counter() - begin
    return RunResult(
        metrics, learned.history.curve, {name: problem.lines(name, by_unit) for name, by_unit in probabilities.items()}
    )


def _domain_parts(model: Any, problem: Problem, domain: str | None, place: FinetuneDevice) -> dict[str, str]:
    """Activates the model's parts (such as adapters) for the configured domain, or for the domain nearest to the task.

    Returns:
        A dict with `domain`, the domain whose parameters are used, and `nearest_domain`. The dict is empty if the model
        cannot compare domains with texts.

    Raises:
        ModelError: the model has no parameters for the domain.
    """
    known = domains_of(model)
    if known is None:
        if domain is not None:
            choose_domain(model, domain)
        return {}
    train = problem.examples["train"]
    texts = np.split(train.tokens, train.ends[1:-1])[:ROUTED_EXAMPLES]
    vectors = domain_vectors(model.to(place.device), texts)
    nearest = known.names[int(nearest_domains(model, vectors.mean(0, keepdims=True))[0])]
    choose_domain(model, domain or nearest)
    return {"domain": domain or nearest, "nearest_domain": nearest}


def _metrics(
    problem: Problem, settings: FinetuneSettings, learned: Learned, probabilities: dict[str, np.ndarray]
) -> dict[str, Any]:
    facts, test, history = problem.facts, problem.splits["test"], learned.history
    epochs = len(history.curve)
    seen = epochs * len(problem.examples["train"])
    return {
        **task_scores(facts, test.labels, problem.by_example("test", probabilities["test"]), test.leaked),
        "dev_score": problem.score("dev", probabilities["dev"]),
        "metric": facts.metric,
        "epochs": epochs,
        "best_epoch": history.best_epoch,
        "truncated": {name: problem.examples[name].truncated for name in SPLITS},
        "max_length": settings.max_length,
        "examples_per_s": seen / history.seconds if seen else None,
        "trained_parameters": learned.trained_parameters,
        "majority_score": problem.majority_score(),
        "degenerate": problem.degenerate("test", probabilities["test"]),
    }

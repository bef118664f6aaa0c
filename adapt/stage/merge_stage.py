"""Defines the stage `merge`, which merges the weights of several models without training."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config, ModelConfig
from adapt.evaluate.verdict import Verdict
from adapt.merge.companion_files import MergeFacts, dress
from adapt.merge.compatibility import NewTokens, check_architectures, new_tokens
from adapt.merge.merger import Merging
from adapt.merge.table import MERGERS
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.runner.record import Record
from adapt.show.blocks import Block, TextBlock, summary
from adapt.stage.context import Context, located
from adapt.support import errors, paths
from adapt.support.redact import redact
from adapt.train.checkpoints.stored_checkpoints import checkpoint_files, checkpoint_weights, is_checkpoint, training_of

if TYPE_CHECKING:
    from adapt.merge.streamed_merge import Weights


@dataclass(frozen=True)
class Merged:
    """Result of `Merge`: settings and folders of the merged models."""

    kind: str
    shares: dict[str, str]
    """Folder of each merged model, relative to the stage's folder and keyed by its share (`merge.shares`). If there is
    only one model, its folder is `.`."""
    weights: list[float]
    density: float | None
    tensors: int
    """Number of merged tensors. All other tensors are copied from the base."""
    transductive: bool
    """Whether one of the models was trained on the text of dev and test."""
    new_tokens: int = 0
    """Number of tokens that the merged models have and the base lacks."""

    def models_made(self, record: Record) -> dict[str, Path]:
        """Returns the folder of each merged model, keyed by share. If there is only one, its key is an empty string."""
        folders = {share: record.path / folder for share, folder in self.shares.items()}
        return folders if len(folders) > 1 else {"": next(iter(folders.values()))}

    def blocks(self, record: Record) -> list[Block]:
        merged, made = len(record.what.get("models", [])), len(self.shares)
        sources = "1 model" if merged == 1 else f"{merged} models"
        said = (
            f"Merged {sources} with the base model by {self.kind} into {made} new model{'' if made == 1 else 's'},"
            " without training."
        )
        listed = ", ".join(
            f"{{name: {f'share-{name}' if name else 'merged'}, path: {path}}}"
            for name, path in self.models_made(record).items()
        )
        parts = [f"{self.tensors} tensors merged"]
        if self.weights:
            parts.append(f"model weights {', '.join(f'{weight:.4g}' for weight in self.weights)}")
        if self.density is not None:
            parts.append(f"density {self.density:g}")
        if self.new_tokens:
            parts.append(f"{self.new_tokens:,} tokens that the base model does not have")
        folders = [
            TextBlock(f"Model with share {share}: {record.path / folder}") for share, folder in self.shares.items()
        ]
        how = (
            "To compare with the base model, run dontstop evaluate with the base model's configuration and"
            f" --comparison.models '[{listed}]'"
        )
        verdict = Verdict({}, lack="a merge does not measure the models it makes").block()
        return [verdict, *summary(said), TextBlock(f"Settings: {', '.join(parts)}."), TextBlock(how), *folders]


@dataclass(frozen=True, eq=False)
class Merge(Stage[Merged]):
    """Merges models with a base, and writes one merged model per share (value of `merge.shares`)."""

    kind = "merge"
    takes = NOTHING

    name: str
    config: Config
    start: Start
    """Base model."""
    models: tuple[Start, ...]
    merging: Merging
    extended: int | None = None
    """Index of the first model that has more tokens than the base. The result gets the tokens of this model. None if no
    model has more tokens."""

    @property
    def tokens(self) -> Start:
        """The model from which the result gets its vocabulary and dimensions."""
        return self.start if self.extended is None else self.models[self.extended]

    @property
    def folders(self) -> dict[float, str]:
        """Folder of each merged model, relative to the stage's folder and keyed by share."""
        shares = self.merging.shares
        return {share: f"share-{share:g}" for share in shares} if len(shares) > 1 else {shares[0]: "."}

    def what(self) -> Mapping[str, Any]:
        merging = self.merging
        return {
            "merge": merging.kind,
            "shares": merging.shares,
            "weights": merging.weights,
            "density": merging.density,
            "base": self.start.digest,
            "models": [model.digest for model in self.models],
            **({"seed": merging.seed} if MERGERS.load(merging.kind).is_random else {}),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Merged]:
        """Merges the models tensor by tensor, and writes the results.

        Raises:
          ModelError: the models differ in architecture or vocabulary. Nothing is written in this case.
        """
        from adapt.merge import streamed_merge  # imported here, because it loads torch

        base, models = self.start.made(done), [model.made(done) for model in self.models]
        # checked again, because stages of this chain may have produced models after the first check
        tokens = check_alike(base, models)
        targets = {share: folder / name for share, name in self.folders.items()}
        for target in targets.values():
            target.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            weights = []
            for source in (model.model for model in models):
                opened: AbstractContextManager[Weights] = (
                    checkpoint_weights(source) if is_checkpoint(source) else streamed_merge.stored_weights(source)
                )
                weights.append((source, stack.enter_context(opened)))
            tensors = streamed_merge.merge_models(
                self.merging, base.model, weights, targets, base.trust_remote_code, tokens
            )
        number = tokens.number if tokens else 0
        facts = {target: self._facts(share, base, models, number) for share, target in targets.items()}
        index = MERGERS.load(self.merging.kind).dressed_as
        speaker = None if index is None else models[index]
        dress(models[tokens.extended[0]] if tokens else speaker or base, facts, speaker)
        knows = any(start.knows(done) for start in (self.start, *self.models)) or any(map(_knows, models))
        shares = {f"{share:g}": name for share, name in self.folders.items()}
        merging = self.merging
        return Outcome(Merged(merging.kind, shares, list(merging.weights), merging.density, tensors, knows, number))

    def _facts(self, share: float, base: Pretrained, models: list[Pretrained], new_tokens: int) -> "MergeFacts":
        """Returns the entries of the model card for the model that was merged with this share."""
        merging = self.merging
        weights = [f"{weight:.4g}" for weight in merging.weights] or [""] * len(models)
        known = {"kind": merging.kind, "share": share, "density": merging.density, "new tokens": new_tokens or None}
        seeded = {"seed": merging.seed} if MERGERS.load(merging.kind).is_random else {}
        return MergeFacts(
            name=self.name,
            base_model=redact(self.config.model.path if self.start.training is None else str(base.model)),
            kind=merging.kind,
            rule=" ".join((MERGERS.load(merging.kind).__doc__ or "").split()),
            share=share,
            settings={name: value for name, value in {**known, **seeded}.items() if value is not None},
            sources=[
                ("base", redact(str(base.model)), _identity(self.start), ""),
                *(
                    (f"model {number}", redact(str(model.model)), _identity(start), weight)
                    for number, (model, start, weight) in enumerate(zip(models, self.models, weights, strict=True), 1)
                ),
            ],
            causal=self.config.objective.kind == "causal",
        )


def merged_from(context: Context, path: str) -> Start:
    """Returns the model that `path` names. It may be a stage of the chain, a model's folder or id, or a checkpoint.

    Raises:
      ModelError: there is no such model, or the model is a checkpoint that cannot be used.
    """
    folder, config = paths.user_path(path), context.config
    if path in context.made:
        return context.made[path]
    if not is_checkpoint(folder):
        return located(ModelConfig(path=path, trust_remote_code=config.model.trust_remote_code), context.digests)
    if config.merge.kind != "average":
        what = f"merge.models: {path} is a training checkpoint, which only merge.kind average accepts"
        raise errors.ModelError(what, "name an exported model, or set merge.kind to average")
    files = checkpoint_files(folder.resolve())
    return Start(Pretrained(folder.resolve(), context.start.pretrained.tokenizer), context.digests.of_all(files))


def check_alike(base: Pretrained, models: Sequence[Pretrained]) -> NewTokens | None:
    """Checks that models can be merged with a base, and finds the tokens that the base lacks.

    Returns:
      Tokens that some models have and the base lacks. None if there are no such tokens.

    Raises:
      ModelError: the models differ in a way that prevents merging. The message names the difference.
    """
    # a checkpoint is skipped by comparing the base with itself: the checkpoint's tensors are checked later
    comparable = [base if is_checkpoint(model.model) else model for model in models]
    for model in comparable:
        if model != base:
            check_architectures(base.model, model.model)
    return new_tokens(base, comparable)


def _knows(model: Pretrained) -> bool:
    """Returns whether a model is a checkpoint from a training run that used the text of the dev and test splits."""
    record = training_of(model.model) if is_checkpoint(model.model) else None
    return bool(record and record.metrics.get("transductive"))


def _identity(start: Start) -> str:
    """Returns the digest of an existing model, or the key of the stage that made it."""
    return start.training.key if start.training else start.digest or ""

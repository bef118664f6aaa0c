"""Stage `fisher`: the Fisher information of every weight of a model, measured on some rows of a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.errors import TrainingError
from adapt.method.ewc.options import EwcOptions
from adapt.method.measuring import sampled_rows, text_of
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.objective.known import objective_what
from adapt.runner import Done, Outcome, Stage
from adapt.runner.cost import cost_of

if TYPE_CHECKING:  # torch is loaded in Ray tasks only once they have hidden the GPUs that are not theirs
    import torch

    from adapt.train.over_rows import Share

ROWS = 16
"""Rows that a task takes at once; every row is passed through the model by itself."""


@dataclass(frozen=True)
class FisherMeasured:
    """What was measured. The information itself is in `fisher.safetensors`."""

    rows: int
    tokens: int
    """Tokens of text that were read."""
    domains: int
    """Domains that it is the mean of."""
    device_seconds: float


@dataclass(frozen=True, eq=False)
class MeasureFisher(Stage[FisherMeasured]):
    """How much the text that a model knows depends on each weight (arXiv 1612.00796, equation 3)."""

    kind = "fisher"

    name: str
    config: Config
    options: EwcOptions
    start: Start
    """The model that is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts that it is measured on."""
    previous: Stage[FisherMeasured] | None
    """The information of the domains before, which the new one joins."""

    def what(self) -> Mapping[str, Any]:
        """The sample, the loss and the model."""
        return {
            "sequences": self.options.fisher_sequences,
            "sequence_length": self.config.training.sequence_length,
            "attention_dropout": self.config.model.attention_dropout,
            "objective": objective_what(self.config),
            "model": self.start.digest,
            "seed": self.config.seed,
        }

    def run(self, folder: Path, done: Done) -> Outcome[FisherMeasured]:
        """Measures on the cluster's devices."""
        from adapt.runtime import await_resources, connect

        connect(self.config.resources)
        await_resources(self.config.resources)
        texts = tuple(str(done[text].path) for text in self.texts)
        measuring = MeasuringFisher(self.config, self.options, self.start.made(done), texts, str(folder))
        previous = done[self.previous].path if self.previous else None
        result = measure_fisher(measuring, previous)
        return Outcome(result, cost_of(result.device_seconds, self.config.resources.price_per_device_hour))


@dataclass(frozen=True)
class MeasuringFisher:
    """What is to be measured."""

    config: Config
    options: EwcOptions
    pretrained: Pretrained
    """The model."""
    corpora: tuple[str, ...]
    """Folders of the prepared text."""
    folder: str
    """Where the result goes."""


def measure_fisher(measuring: MeasuringFisher, previous: Path | None) -> FisherMeasured:
    """Measures on the cluster that this process is connected to, and writes `fisher.safetensors`.

    Args:
        measuring: what.
        previous: folder of the information of the domains before.

    Raises:
        DataError: there is no text.
        TrainingError: gradients are not finite.
    """
    from adapt.method.ewc.fisher import FISHER_FILE, merge_fisher
    from adapt.train.over_rows import batches_of, over_rows

    config, folder = measuring.config, Path(measuring.folder)
    length, wanted = config.training.sequence_length, measuring.options.fisher_sequences
    rows = sampled_rows(measuring.corpora, length, wanted, config.seed, "Fisher information")
    shares, seconds = over_rows(partial(fisher_share, measuring), batches_of(rows, ROWS), config)
    files, examples, tokens, finite = zip(*shares, strict=True)
    if not all(finite):
        raise TrainingError(
            "gradients are not finite, so the Fisher information cannot be measured",
            "check the loss of the training before; a smaller training.learning_rate may help",
        )
    parts = [folder / file for file in files]
    before = previous / FISHER_FILE if previous else None
    domains = merge_fisher(parts, sum(examples), before, folder / FISHER_FILE)
    for part in folder.glob("part-*.safetensors"):
        part.unlink()
    return FisherMeasured(len(rows), sum(tokens), domains, seconds)


def fisher_share(
    measuring: MeasuringFisher, device: torch.device, precision: str, share: Share
) -> tuple[str, int, int, bool]:
    """One device's share of the rows: the file that its sums are in, examples, tokens, and whether all is finite."""
    import torch

    from adapt.method.ewc.fisher import save_squares, squared_gradients
    from adapt.method.measuring import batches_at, model_on
    from adapt.model.tokenizer import load_tokenizer
    from adapt.objective.build import make

    config, pretrained = measuring.config, measuring.pretrained
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    objective = make(config.objective, tokenizer, config.seed)
    length = config.training.sequence_length
    batches = batches_at(text_of(measuring.corpora), share, length, objective.columns())
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    squares = squared_gradients(model_on(device, config, pretrained), objective, batches, dtype)
    file = f"part-{share[0][0]:06d}.safetensors"
    save_squares(squares, Path(measuring.folder) / file)
    finite = all(bool(sums.isfinite().all()) for sums in squares.sums.values())
    return file, squares.examples, squares.tokens, finite

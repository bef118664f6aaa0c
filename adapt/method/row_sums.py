"""Sums measurements over rows of a text on the cluster's devices, saves the means, and averages over domains."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from adapt.config import Config
from adapt.corpus.sample_order import permute
from adapt.corpus.token_shards import TokenStream, text_of
from adapt.method.measurement import EPOCH, ImportedFunction, Summed, Summing
from adapt.model import locate
from adapt.model.load import load_model
from adapt.model.packing import attention, isolation
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import Batch
from adapt.objective.table import objective_options, sees_only_earlier
from adapt.ray.runtime import await_resources, connect
from adapt.runner.files import file_aside
from adapt.support.errors import DataError, ModelError, StageError, TrainingError
from adapt.train.over_rows import Share, batches_of, over_rows

ROWS = 16
"""Number of rows that a task reads at once."""


def sampled_rows(corpora: Sequence[str | Path], length: int, wanted: int, seed: int, measured: str) -> np.ndarray:
    """Returns the numbers of randomly drawn rows to measure on, int64. The draw depends on the text and the seed only.

    Args:
        corpora: folders of the prepared text.
        length: length of a row [tokens].
        wanted: number of rows to draw. All rows are drawn if the text has fewer.
        seed: seed of the draw.
        measured: name of the measured quantity, for messages.

    Raises:
        DataError: there is no text.
    """
    rows = text_of(corpora).rows(length)
    if not rows:
        raise DataError(
            f"{', '.join(map(str, corpora))}: no text to measure {measured} on",
            "give this domain more text, or loosen corpus.cleaning",
        )
    return permute(np.arange(min(wanted, rows)), rows, seed, EPOCH)


def batches_at(stream: TokenStream, share: Share, length: int, marks: Sequence[str]) -> Iterator[tuple[int, Batch]]:
    """Yields numbered batches of rows. `marks` names the columns that the objective needs in addition to the tokens."""
    for number, rows in share:
        columns: dict[str, Any] = stream.take(rows.tolist(), length, tuple(marks))
        yield number, Batch.of({**columns, "epochs": np.full(len(rows), EPOCH), "rows": rows})


def model_on(device: torch.device, config: Config, pretrained: locate.Pretrained) -> PreTrainedModel:
    """Loads a model with the training's settings, and returns the model in evaluation mode on a device."""
    causal, dropout = config.objective.kind == "causal", config.model.attention_dropout
    model = load_model(pretrained.model, causal, pretrained.trust_remote_code, dropout)
    if sees_only_earlier(config.objective):
        isolation.see_only_earlier(model)
    if device.type == "cpu":
        attention.use_quick_dropout(model)
    torch.nn.Module.to(model, device)
    model.eval()  # called last, so that the dropout modules added above are in evaluation mode too
    return model


def sum_up(summing: Summing, name: str, previous: Path | None) -> Summed:
    """Sums measurements over rows on the cluster, and writes their means to a safetensors file.

    Args:
        summing: the configuration, the model and the texts.
        name: name of the file with the means.
        previous: folder with the means of the earlier domains, which are averaged with the new means. None if there is
            no earlier domain.

    Raises:
        DataError: there is no text.
        TrainingError: a sum is not finite.
    """
    config, folder = summing.config, Path(summing.folder)
    connect(config.resources)
    await_resources(config.resources)
    rows = sampled_rows(summing.corpora, config.training.sequence_length, summing.wanted, config.seed, summing.measured)
    on_device = partial(ImportedFunction("adapt.method.row_sums:add_up"), summing)
    shares, seconds = over_rows(on_device, batches_of(rows, ROWS), config)
    files, counts, tokens, finite = zip(*shares, strict=True)
    if not all(finite):
        raise TrainingError(
            f"measured values are not finite, so the {summing.measured} cannot be computed",
            "check the loss of the previous training run; a smaller training.learning_rate may help",
        )
    parts = [folder / file for file in files]
    domains = join_sums(parts, sum(counts), previous / name if previous else None, folder / name)
    for part in folder.glob("part-*.safetensors"):
        part.unlink()
    return Summed(len(rows), sum(tokens), domains, seconds)


def add_up(summing: Summing, device: torch.device, precision: str, share: Share) -> tuple[str, int, int, bool]:
    """Sums over one device's share of the rows, in a Ray task.

    Returns:
        The name of the written file, the number of examples, the number of tokens, and whether all sums are finite.
    """
    config, pretrained = summing.config, summing.pretrained
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    objective = make(config.objective, tokenizer, config.seed, objective_options(config))
    batches = batches_at(text_of(summing.corpora), share, config.training.sequence_length, objective.columns())
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    added = summing.adding(model_on(device, config, pretrained), objective, batches, dtype)
    file = f"part-{share[0][0]:06d}.safetensors"
    save_sums(added.sums, Path(summing.folder) / file)
    return file, added.count, added.tokens, all(bool(sums.isfinite().all()) for sums in added.sums.values())


def save_sums(sums: Mapping[str, Tensor], file: Path) -> None:
    """Writes one device's sums to a safetensors file."""
    with file_aside(file) as aside:
        save_file({name: each.cpu().contiguous() for name, each in sums.items()}, aside)


def join_sums(parts: Sequence[Path], count: int, previous: Path | None, file: Path) -> int:
    """Divides the sums by `count`, and averages the resulting means over all domains so far with equal weights.

    Args:
        parts: files written by `save_sums`.
        count: number of examples of all parts.
        previous: file with the mean over the earlier domains; None if there is no earlier domain.
        file: file for the result, written under a temporary name and then renamed.

    Returns:
        The number of domains over which the result is averaged.
    """
    domains, merged = 1, {}
    with ExitStack() as files:
        first, *others = (files.enter_context(safe_open(part, framework="pt")) for part in parts)
        for name in first.keys():  # noqa: SIM118
            total = first.get_tensor(name).double()
            for other in others:
                total += other.get_tensor(name)
            merged[name] = (total / max(count, 1)).float()
    if previous:
        with safe_open(previous, framework="pt") as before:
            domains += int(before.metadata()["domains"])
            for name, mean in merged.items():
                mean.lerp_(before.get_tensor(name), (domains - 1) / domains)
    with file_aside(file) as aside:
        save_file(merged, aside, {"domains": str(domains)})
    return domains


def check_sums(file: Path, ours: Mapping[str, Sequence[int]], measured: str) -> None:
    """Checks that means were measured on this model.

    Args:
        file: file of means that `join_sums` wrote.
        ours: the expected shapes, keyed by parameter name.
        measured: name of the measured quantity, for messages.

    Raises:
        StageError: the file is missing or broken.
        ModelError: the means were measured on another model.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            theirs = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise StageError(f"{file} cannot be read: {error}", f"delete {file.parent} to measure again") from error
    ours = {name: list(shape) for name, shape in ours.items()}
    if names := sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)):
        example = (
            f"the shape of {names[0]} is {theirs.get(names[0], 'missing')} there and"
            f" {ours.get(names[0], 'missing')} in this model"
        )
        raise ModelError(
            f"{file} has the {measured} of another model: {example}",
            "use the same model for all domains of a sequence, or measure again on this model",
        )

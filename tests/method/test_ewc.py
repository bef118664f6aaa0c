"""Tests EWC: Fisher information against autograd row by row, and the penalty against its closed form."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from adapt.config import Config, MethodConfig, ResourcesConfig, TrainingConfig
from adapt.corpus.token_shards import text_of, write_shard
from adapt.method.base import AddedMemory, Setting
from adapt.method.ewc import FISHER_FILE, MEASURED, Ewc, EwcOptions, squares
from adapt.method.measurement import EPOCH, Summing, share_of_sums
from adapt.method.quadratic_penalty import squared_gradients
from adapt.method.row_sums import sampled_rows, sum_up
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import Batch
from adapt.support.errors import ModelError, StageError, TrainingError
from tests.method.trained import START, Trained, train_all
from tests.train import toy
from tests.train.capacity.test_memory import ROBERTA

LENGTH = 16


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("corpus")
    documents = [[2, *draw.integers(5, 154, draw.integers(1, 30)).tolist(), 3] for _ in range(40)]
    write_shard(folder / "train-000000-000000.arrow", documents, 154)
    return folder


def summing(model: Path, corpus: Path, folder: Path, workers: int = 1) -> Summing:
    training = TrainingConfig(precision="fp32", sequence_length=LENGTH)
    config = Config(seed=3, method=MethodConfig("ewc"), training=training, resources=ResourcesConfig(workers=workers))
    return Summing(config, Pretrained(model, model), (str(corpus),), str(folder), 20, MEASURED, squares)


def by_hand(model: Any, batch: Batch, objective: Any) -> Iterator[dict[str, Tensor]]:
    """Yields the squared gradients of each row of a batch, computed from transformers' own loss."""
    for number in range(len(batch.tokens)):
        length = int(batch.lengths[number])
        row = Batch(
            *(each[number : number + 1] for each in (batch.tokens, batch.lengths, batch.epochs, batch.rows)),
            batch.starts[number : number + 1],
        )
        seen = objective.corrupt(row)
        labels = torch.where(seen.positions, row.tokens, -100)[:, :length]
        model.zero_grad()
        loss = model(input_ids=seen.input_ids[:, :length], labels=labels).loss
        loss.backward()
        yield {
            name: torch.zeros_like(each) if each.grad is None else each.grad.square()
            for name, each in model.named_parameters()
        }


def test_fisher_information_equals_autograd_row_by_row() -> None:
    batches = [(number, Batch.of(toy.columns(number))) for number in range(2)]
    model, objective = toy.model().eval(), toy.Objective()
    found = squared_gradients(model, objective, batches)
    by_row = [each for _, batch in batches for each in by_hand(toy.model().eval(), batch, objective)]
    assert found.count == len(by_row) == 16
    assert found.tokens == sum(int(batch.lengths.sum()) for _, batch in batches)
    for name, sums in found.sums.items():
        torch.testing.assert_close(sums, torch.stack([each[name] for each in by_row]).sum(0), rtol=1e-4, atol=1e-9)
    summed = torch.stack([each["cls.predictions.bias"].sqrt() for each in by_row]).sum(0).square()
    assert not torch.allclose(found.sums["cls.predictions.bias"], summed, rtol=0.5)  # summed gradients, squared, differ
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_the_gradient_is_strength_times_information_times_distance_moved(
    ranks: Any, tmp_path: Path, stage: int
) -> None:
    """Checks the penalty and the gradient norm of two steps.

    The first penalty is 0, because the weights have not moved. The second depends on how far the first step moved them.
    """
    fisher = {name: torch.rand(each.shape) for name, each in toy.model().named_parameters()}
    save_file(fisher, tmp_path / FISHER_FILE, {"domains": "1"})
    runs = [
        Trained(toy.Case(stage, steps=steps), "ewc", {"strength": 7.0}, {"fisher": tmp_path}, START) for steps in (1, 2)
    ]
    one, two = ranks(2).run(train_all, runs)[0]
    start = dict(toy.model().named_parameters())
    moved = {name: one.weights[name] - each.detach() for name, each in start.items()}
    expected = sum(float((fisher[name] * each.square()).sum()) for name, each in moved.items())
    assert one.report["penalty"] == 0.0
    assert two.report["penalty"] == pytest.approx(7.0 / 2 * expected, rel=1e-4)
    # the expected norm of the second step comes from autograd of loss plus penalty
    weights = toy.model()
    weights.load_state_dict(one.weights)
    seen = toy.Objective().corrupt(Batch.of(toy.columns(1)))
    logits = weights(input_ids=seen.input_ids, attention_mask=seen.real).logits[seen.positions]
    named = dict(weights.named_parameters())
    penalty = torch.stack([(fisher[name] * (named[name] - start[name].detach()).square()).sum() for name in named])
    (torch.nn.functional.cross_entropy(logits, seen.targets) + 7.0 / 2 * penalty.sum()).backward()
    norm = torch.cat([each.grad.flatten() for each in named.values() if each.grad is not None]).norm()
    assert two.norms[1] == pytest.approx(norm.item(), rel=1e-4)


def test_the_stage_equals_a_computation_from_its_rows(
    tiny_bert: Path, corpus: Path, tmp_path: Path, ray_cluster: None
) -> None:
    """Checks the stage with one and with two Ray tasks, and that no files of these tasks remain."""
    results = [sum_up(summing(tiny_bert, corpus, _made(tmp_path / str(n)), n), FISHER_FILE, None) for n in (1, 2)]
    one, two = (load_file(tmp_path / str(n) / FISHER_FILE) for n in (1, 2))
    assert [file.name for file in (tmp_path / "2").iterdir()] == [FISHER_FILE]
    assert next(replace(each, device_seconds=0.0) for each in results) == replace(results[1], device_seconds=0.0)
    rows = sampled_rows([corpus], LENGTH, 20, 3, "it")
    columns: dict[str, Any] = text_of([corpus]).take(rows.tolist(), LENGTH, ())
    batch = Batch.of({**columns, "epochs": np.full(len(rows), EPOCH), "rows": rows})
    objective = make(summing(tiny_bert, corpus, tmp_path).config.objective, load_tokenizer(tiny_bert), seed=3)
    expected = squared_gradients(load_model(tiny_bert), objective, [(0, batch)])
    assert (results[0].rows, results[0].domains, results[0].tokens) == (20, 1, expected.tokens)
    for name, sums in expected.sums.items():
        torch.testing.assert_close(one[name], sums / 20, rtol=1e-4, atol=1e-9)
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-9)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_gradients_that_are_not_finite_are_refused(
    tiny_bert: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = summing(tiny_bert, corpus, tmp_path)
    share = [(0, sampled_rows([corpus], LENGTH, 4, 3, "it"))]
    file, examples, _, finite = share_of_sums(asked, torch.device("cpu"), "fp32", share)
    assert (examples, finite) == (4, True)
    monkeypatch.setattr("adapt.method.row_sums.over_rows", lambda *_: ([(file, examples, 9, False)], 1.0))
    for name in ("connect", "await_resources"):
        monkeypatch.setattr(f"adapt.method.row_sums.{name}", lambda *_: None)
    with pytest.raises(TrainingError, match="not finite"):
        sum_up(asked, FISHER_FILE, None)


def test_fisher_information_of_another_model_is_refused(tmp_path: Path) -> None:
    method, setting = Ewc(EwcOptions()), Setting(past={"fisher": tmp_path})
    with pytest.raises(StageError, match="cannot be read"):
        method.prepare_model(toy.model(), setting)
    found = squared_gradients(toy.model().eval(), toy.Objective(), [(0, Batch.of(toy.columns(0)))])
    save_file({name: each.contiguous() for name, each in found.sums.items()}, tmp_path / FISHER_FILE)
    assert method.prepare_model(toy.model(), setting)
    save_file({**found.sums, "cls.predictions.bias": torch.zeros(3)}, tmp_path / FISHER_FILE)
    with pytest.raises(ModelError, match=r"cls.predictions.bias is \[3\] there and \[61\] here"):
        method.prepare_model(toy.model(), setting)


def test_its_memory_is_divided_like_the_optimizers_state() -> None:
    assert Ewc(EwcOptions()).added_memory(ROBERTA, shared_by=4) == AddedMemory(held=2 * ROBERTA.parameters)


def test_only_the_strength_enters_the_key_of_a_training() -> None:
    assert Ewc(EwcOptions(fisher_sequences=9)).what() == {"kind": "ewc", "strength": 5000.0}

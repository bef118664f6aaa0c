"""Tests L2-SP and EWC: the gradient of the penalty, on any number of ranks, and the Fisher information."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from adapt.config import Config, MethodConfig, ResourcesConfig, TrainingConfig
from adapt.corpus.token_shards import text_of, write_shard
from adapt.method import collectives
from adapt.method.base import AddedMemory, Method, Setting
from adapt.method.measurement import EPOCH, Summing
from adapt.method.quadratic_penalty import Pull, Pulls, squared_gradients
from adapt.method.row_sums import add_up, sampled_rows, sum_up
from adapt.method.weight_pulls import FISHER_FILE, MEASURED, Ewc, EwcOptions, L2sp, L2spOptions
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import Batch
from adapt.support.errors import ModelError, StageError, TrainingError
from adapt.train.capacity.memory import Demand, estimate
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from tests.method.trained import START, Trained, train_all
from tests.train import toy
from tests.train.capacity.test_memory import ROBERTA
from tests.train.toy import GLOBAL_BATCH, Case, Objective, columns, feed, model, moments, rate, settings

STAGES = 3, 0, 1, 2
STRONG = L2spOptions(alpha=3.0)
BOTH = L2spOptions(alpha=2.0, beta=1.5)
ANCHOR, BASE = Path("start"), Path("base")
has_bf16 = torch.cpu.get_capabilities().get("avx512_bf16", False)


class Outcome(NamedTuple):
    """Results of a training run. Only rank 0 has the weights."""

    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Gradients of the first step, computed from AdamW's first moments."""
    norms: list[float]
    report: dict[str, float]


def other(folder: Path) -> nn.Module:
    """Returns the toy model for any folder. For the folder BASE, its weights are slightly changed."""
    toy = model()
    if folder == BASE:
        with torch.no_grad():
            for number, parameter in enumerate(toy.parameters()):
                parameter += 0.01 * (number % 5 - 2)
    return toy


def train(runs: list[tuple[Case, L2spOptions | None]]) -> list[Outcome]:
    """Trains several runs one after another on the calling rank."""
    return [_train(*run) for run in runs]


def _train(case: Case, options: L2spOptions | None) -> Outcome:
    method = L2sp(options) if options else Method()
    world, training = dist.get_world_size(), settings(**case.training)
    setting = Setting(anchor=ANCHOR, base=BASE, zero_stage=case.zero_stage, world=world, load=other)
    toy = method.prepare_model(model(case.dropout), setting)
    passes = GLOBAL_BATCH // world // case.micro_batch
    engine = Engine(toy, training, case.zero_stage, case.precision, case.micro_batch, passes, case.offload)
    method.begin(engine)
    loop = Loop(engine, Objective(), method, training, case.micro_batch, case.steps, seed=5)
    first = engine.load(case.load)["step"] if case.load else 0
    norms, gradients = [], {}
    for step, share in enumerate(feed(first, case.steps), first):
        norms.append(loop.step(share, step, rate(step))[2])
        gradients = gradients or {name: mean / (1 - 0.9) for name, (mean, _) in moments(engine).items()}
        if case.is_saved(step + 1):
            engine.save(case.save, {"step": step + 1})
    return Outcome(engine.full_state(), gradients, norms, method.report())


def reference(options: L2spOptions, steps: int) -> Outcome:
    """Trains the expected result in plain torch, with the gradient of loss plus penalty from autograd."""
    toy, training, masking = model(), settings(), Objective()
    named = dict(toy.named_parameters())
    start = {name: each.detach().clone() for name, each in named.items()}
    base = dict(other(BASE).named_parameters())
    adamw = torch.optim.AdamW(
        [{"params": [p], "weight_decay": training.weight_decay if p.ndim > 1 else 0.0} for p in named.values()],
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        foreach=False,
    )
    norms, penalty = [], torch.zeros(())
    gradients: dict[str, Tensor] = {}
    for step in range(steps):
        seen = masking.corrupt(Batch.of(columns(step)))
        logits = toy(input_ids=seen.input_ids, attention_mask=seen.real).logits[seen.positions]
        penalty = torch.stack(list(_penalties(options, named, start, base))).sum()
        toy.zero_grad()
        (nn.functional.cross_entropy(logits, seen.targets) + penalty).backward()
        norm = nn.utils.clip_grad_norm_(named.values(), training.max_gradient_norm)
        gradients = gradients or {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.step()
        norms.append(norm.item())
    weights = {name: each.detach() for name, each in named.items()}
    return Outcome(weights, gradients, norms, {"penalty": penalty.item()})


def _penalties(options: L2spOptions, now: Any, start: Any, base: Any) -> Iterator[Tensor]:
    for name, weight in now.items():
        yield options.alpha / 2 * (weight - start[name]).square().sum()
        yield options.beta / 2 * (weight - base[name].detach()).square().sum()


def assert_close(found: Outcome, expected: Outcome) -> None:
    """Checks that two outcomes agree within fp32 rounding. A resumed run is compared on its own steps only."""
    for name, weight in expected.weights.items():
        # softmax ignores key biases, so their gradient is only rounding error, which AdamW turns into a full step
        atol = 5e-3 if name.endswith("key.bias") else 2e-5
        torch.testing.assert_close(found.weights[name], weight, rtol=1e-4, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(found.norms, expected.norms[-len(found.norms) :], rtol=1e-4, atol=0)
    assert found.report["penalty"] == pytest.approx(expected.report["penalty"], rel=1e-4)


@pytest.mark.parametrize("options", [STRONG, BOTH])
@pytest.mark.parametrize("world", [1, 2])
def test_steps_equal_those_of_plain_torch(ranks: Any, world: int, options: L2spOptions) -> None:
    """Compares weights, penalty and norms. Gradients are clipped by the gradient norm of loss plus penalty."""
    expected = reference(options, 4)
    for found in ranks(world).run(train, [(Case(stage), options) for stage in STAGES])[0]:
        assert_close(found, expected)
    plain = reference(L2spOptions(alpha=0.0), 4)
    assert any(not torch.allclose(plain.weights[name], each, atol=1e-3) for name, each in expected.weights.items())


@pytest.mark.parametrize("world", [1, 2])
def test_the_gradient_is_the_strength_times_the_distance(ranks: Any, world: int) -> None:
    """Checks the first step. The weights are still at their start, so the penalty's gradient is beta (w - w_base)."""
    free = {"max_gradient_norm": 0.0}
    cases = [Case(stage, steps=1, training=free) for stage in STAGES]
    runs = [(case, options) for case in cases for options in (None, BOTH)]
    found = ranks(world).run(train, runs)[0]
    start, base = dict(model().named_parameters()), dict(other(BASE).named_parameters())
    for plain, pulled in zip(found[::2], found[1::2], strict=True):
        for name, gradient in plain.gradients.items():
            expected = gradient + BOTH.beta * (start[name] - base[name]).detach()
            torch.testing.assert_close(pulled.gradients[name], expected, rtol=1e-4, atol=1e-5)


def test_without_strength_it_is_exactly_plain_training(ranks: Any) -> None:
    cases = [Case(stage, dropout=0.1, precision=precision) for stage in STAGES for precision in ("fp32", "fp16")]
    runs = [(case, options) for case in cases for options in (None, L2spOptions(alpha=0.0))]
    found = ranks(2).run(train, runs)[0]  # type: ignore[arg-type]
    for plain, nothing in zip(found[::2], found[1::2], strict=True):
        assert nothing.norms == plain.norms
        assert all(torch.equal(nothing.weights[name], each) for name, each in plain.weights.items())


@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.skipif(not has_bf16, reason=""))])
def test_low_precision_affects_passes_but_not_the_pull(ranks: Any, precision: Any) -> None:
    expected = reference(BOTH, 2)
    cases = [(Case(stage, steps=2, precision=precision), BOTH) for stage in STAGES]
    for found in ranks(2).run(train, cases)[0]:
        assert found.report["penalty"] == pytest.approx(expected.report["penalty"], rel=0.05)
        torch.testing.assert_close(found.norms, expected.norms, rtol=0.05, atol=0)


def test_an_offloaded_optimizer_is_clipped_by_the_same_norm(ranks: Any) -> None:
    expected = reference(STRONG, 4)
    for found in ranks(2).run(train, [(Case(stage, offload="optimizer"), STRONG) for stage in (3, 2)])[0]:
        assert_close(found, expected)


def test_it_resumes_exactly(ranks: Any, tmp_path: Path) -> None:
    """Checks that a resumed run equals an uninterrupted run. Weights are pulled to those before the first step."""
    runs = [Case(stage, dropout=0.1) for stage in STAGES]
    folders = [tmp_path / str(number) for number, _ in enumerate(runs)]
    for folder in folders:
        folder.mkdir()
    pairs = list(zip(runs, folders, strict=True))
    cases = [replace(run, save=folder, save_after=2) for run, folder in pairs]
    cases += [replace(run, load=folder) for run, folder in pairs]
    found = ranks(2).run(train, [(case, BOTH) for case in cases])[0]
    for rest, whole in zip(found[4:], found[:4], strict=True):
        assert rest.weights.keys() == whole.weights.keys()
        assert all(torch.equal(rest.weights[name], each) for name, each in whole.weights.items())
        assert rest.report == whole.report


@pytest.mark.parametrize(("before", "after"), [((2, 2), (1, 3)), ((1, 0), (2, 1)), ((2, 3), (1, 0))])
def test_it_resumes_on_other_ranks_and_at_another_stage(ranks: Any, tmp_path: Path, before: Any, after: Any) -> None:
    ranks(before[0]).run(train, [(Case(before[1], steps=2, save=tmp_path), BOTH)])
    (resumed,) = ranks(after[0]).run(train, [(Case(after[1], load=tmp_path), BOTH)])[0]
    assert_close(resumed, reference(BOTH, 4))


def test_its_copies_are_divided_like_the_optimizers_state() -> None:
    one, both = L2sp(L2spOptions()), L2sp(BOTH)
    assert one.added_memory(ROBERTA, shared_by=4) == AddedMemory(held=ROBERTA.parameters)
    config = Config(resources=ResourcesConfig(workers=4, zero_stage=3))
    memory = estimate(ROBERTA, replace(Demand.of(config, 1, "fp32", True), method=both))
    assert memory.method == 2 * ROBERTA.parameters
    alone = replace(config, resources=ResourcesConfig(workers=4))
    assert estimate(ROBERTA, replace(Demand.of(alone, 1, "fp32", True), method=one)).method == 4 * ROBERTA.parameters


def test_its_options_enter_the_key_of_a_training() -> None:
    assert L2sp(L2spOptions(alpha=0.5)).what() == {"kind": "l2sp", "alpha": 0.5, "beta": 0.0}
    assert Method().what() == {"kind": "plain"}


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
    return Summing(config, Pretrained(model, model), (str(corpus),), str(folder), 20, MEASURED, squared_gradients)


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
    # squaring the summed gradients would give another result
    assert not torch.allclose(found.sums["cls.predictions.bias"], summed, rtol=0.5)
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_the_gradient_is_strength_times_information_times_distance_moved(
    ranks: Any, tmp_path: Path, stage: int
) -> None:
    """Checks the penalty of EWC and the gradient norm in two steps.

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
    """Checks the stage that measures Fisher information, with one and two Ray tasks. None of their files may remain."""
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
    file, examples, _, finite = add_up(asked, torch.device("cpu"), "fp32", share)
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
    with pytest.raises(ModelError, match=r"shape of cls.predictions.bias is \[3\] there and \[61\] in this model"):
        method.prepare_model(toy.model(), setting)


def test_its_memory_is_divided_like_the_optimizers_state() -> None:
    assert Ewc(EwcOptions()).added_memory(ROBERTA, shared_by=4) == AddedMemory(held=2 * ROBERTA.parameters)


def test_only_the_strength_enters_the_key_of_a_training() -> None:
    assert Ewc(EwcOptions(fisher_sequences=9)).what() == {"kind": "ewc", "strength": 5000.0}


def test_the_penalty_on_offloaded_weights_is_summed_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectives of GPUs take no tensors in the machine's memory. Here, the device is `meta`."""
    summed: list[Tensor] = []

    def all_ranks(own: Tensor) -> Tensor:
        summed.append(own)
        return torch.ones(())

    monkeypatch.setattr(collectives, "summed", all_ranks)
    part = SimpleNamespace(name="w", value=torch.ones(3))
    engine: Any = SimpleNamespace(change_gradients=lambda change: change(part, torch.zeros(3)))
    pulls = Pulls([Pull(2.0, {"w": torch.zeros(3)})])
    for _ in range(2):  # at first, this rank has no terms
        assert pulls.penalty("meta", is_divided=True) == 1.0
        pulls.add_to(engine)
    assert [(own.device.type, own.dtype) for own in summed] == [("meta", torch.float64)] * 2

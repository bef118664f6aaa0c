"""Tests stage `importance`, which samples rows, measures them in Ray tasks, and merges earlier importance."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from adapt.config import Config, MethodConfig, ObjectiveConfig, ResourcesConfig, TrainingConfig
from adapt.corpus.token_shards import text_of, write_shard
from adapt.method.das.criteria import MeasureSettings, gate_sizes
from adapt.method.das.importance import (
    IMPORTANCE_FILE,
    Importance,
    load_importance,
    normalize,
    normalize_tokens,
    random_sizes,
)
from adapt.method.das.method import DasOptions
from adapt.method.das.stage import Measuring, plasticity_under, saturated
from adapt.method.das.unit_sizes import (
    _loss,
    gradients_on_cluster,
    measure_importance,
    rows_to_measure,
    sizes_of_share,
)
from adapt.method.measurement import EPOCH, AddedUp, Summing
from adapt.method.row_sums import add_up
from adapt.model.layers import KINDS, Gates
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import MaskedLanguageModelling, make
from adapt.objective.objective import Batch
from adapt.support.errors import DataError, ModelError
from tests.tokenizers import byte_level

LENGTH = 16
CPU = torch.device("cpu")
DAS = DasOptions(importance_sequences=20, importance_batch=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("corpus")
    for shard in range(2):
        documents = [[2, *draw.integers(5, 154, draw.integers(1, 30)).tolist(), 3] for _ in range(12)]
        write_shard(folder / f"train-{shard:06d}-000000.arrow", documents, 154)
    write_shard(folder / "heldout-000000-000000.arrow", [[2, 9, 3]] * 500, 154)  # this text must not be measured
    return folder


def config(workers: int = 1, **das: Any) -> Config:
    return Config(
        seed=3,
        method=MethodConfig("das"),
        method_options=replace(DAS, **das),
        training=TrainingConfig(precision="fp32", sequence_length=LENGTH),
        resources=ResourcesConfig(workers=workers),
    )


def measuring(job: Config, model: Path, corpus: Path, about: Any = "domain", previous: Path | None = None) -> Measuring:
    options: DasOptions = job.method_options
    given = str(previous) if previous else None
    return Measuring(job, options, Pretrained(model, model), (str(corpus),), given, about)


def loaded(folder: Path, model: Path) -> Importance:
    return load_importance(folder, load_model(model))


def every(importance: Importance) -> Tensor:
    return torch.cat([each.flatten() for each in importance.units.values()])


# Tests of the sampled rows


def test_rows_are_a_sample_of_the_corpus(tiny_bert: Path, corpus: Path) -> None:
    some = rows_to_measure(measuring(config(), tiny_bert, corpus))
    everything = rows_to_measure(measuring(config(importance_sequences=10**6), tiny_bert, corpus))
    assert len(set(some.tolist())) == len(some) == 20
    assert some.tolist() == everything[:20].tolist()
    assert sorted(everything.tolist()) == list(range(len(everything)))
    other = rows_to_measure(measuring(replace(config(), seed=4), tiny_bert, corpus))
    assert other.tolist() != some.tolist()


def test_rows_come_from_all_of_several_corpora(tiny_bert: Path, corpus: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "train-000000-000000.arrow", [[2, *range(5, 5 + 3 * LENGTH), 3]], 154)
    alone = measuring(config(importance_sequences=1000), tiny_bert, corpus)
    both = replace(alone, corpora=(str(corpus), str(tmp_path)))
    whole, part = text_of(both.corpora), text_of(alone.corpora)
    assert whole.tokens == part.tokens + 3 * LENGTH + 2
    assert sorted(rows_to_measure(both)) == list(range(-(-whole.tokens // LENGTH)))
    assert whole.slice(part.tokens, part.tokens + 2).tolist() == [2, 5]


def test_an_empty_corpus_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text to measure importance on"):
        measure_importance(measuring(config(), tiny_bert, tmp_path), tmp_path)


# Tests on a cluster


@pytest.mark.parametrize(
    ("about", "das"),
    [("domain", {"embeddings": "gradient"}), ("domain", {"granularity": "example"}), ("general", {})],
)
def test_importance_does_not_depend_on_the_number_of_tasks(
    about: Any, das: dict[str, Any], tiny_bert: Path, corpus: Path, tmp_path: Path, ray_cluster: None
) -> None:
    folders = [tmp_path / str(workers) for workers in (1, 2)]
    one, two = (
        measure_importance(measuring(config(workers, **das), tiny_bert, corpus, about), folder)
        for workers, folder in zip((1, 2), folders, strict=True)
    )
    first, second = (loaded(folder, tiny_bert) for folder in folders)
    torch.testing.assert_close(every(first), every(second), atol=1e-5, rtol=1e-5)
    assert torch.equal(first.sample, second.sample)
    if first.embedding is not None and second.embedding is not None:
        torch.testing.assert_close(first.embedding, second.embedding, atol=1e-5, rtol=1e-5)
    assert (first.embedding is not None) == ("embeddings" in das)
    for key in ("rows", "groups", "tokens"):
        assert getattr(one, key) == getattr(two, key)
    assert (one.rows, one.groups) == (20, 20 if "granularity" in das else 5)
    assert one.device_seconds > 0


def test_the_stage_equals_a_computation_from_its_rows(
    tiny_bert: Path, corpus: Path, tmp_path: Path, ray_cluster: None
) -> None:
    job = config(embeddings="frequency", normalize="positive")
    metrics = measure_importance(measuring(job, tiny_bert, corpus), tmp_path)
    model, found = load_model(tiny_bert), loaded(tmp_path, tiny_bert)
    objective = make(ObjectiveConfig(), load_tokenizer(tiny_bert), seed=3)
    shards = sorted(corpus.glob("train-*"))
    stream = torch.cat([tokens(shard) for shard in shards])
    padded = torch.nn.functional.pad(stream, (0, -len(stream) % LENGTH)).view(-1, LENGTH)
    begins = torch.nn.functional.pad(stream == 2, (0, -len(stream) % LENGTH)).view(-1, LENGTH)
    begins[:, 0] = True
    lengths = (len(stream) - torch.arange(len(padded)) * LENGTH).clamp(max=LENGTH)
    batches = [
        Batch(padded[rows], lengths[rows], torch.full((4,), EPOCH), rows, begins[rows])
        for rows in found.sample.split(4)
    ]
    sums = gate_sizes(model, Gates(model), objective, enumerate(batches), MeasureSettings(embeddings="frequency"))
    expected = normalize(sums.means, "positive")
    for kind in KINDS:
        torch.testing.assert_close(found.units[kind], expected[kind], atol=1e-5, rtol=1e-4)
    assert sums.tokens is not None
    assert torch.equal(found.embedding, normalize_tokens(sums.tokens))  # type: ignore[arg-type]
    assert metrics.tokens == int(lengths[found.sample].sum())
    for kind in KINDS:
        assert metrics.plasticity[kind] == pytest.approx((1 - found.units[kind]).mean(1).tolist(), abs=1e-6)
    assert metrics.least_plasticity == min(min(each) for each in metrics.plasticity.values())


def tokens(shard: Path) -> Tensor:
    import pyarrow as pa

    with pa.memory_map(str(shard)) as source:
        return torch.from_numpy(
            pa.ipc.open_file(source).get_batch(0).column("tokens").values.to_numpy().astype("int64")
        )


def test_new_importance_is_merged_with_the_earlier(
    tiny_bert: Path, corpus: Path, tmp_path: Path, ray_cluster: None
) -> None:
    before, alone, together = tmp_path / "before", tmp_path / "alone", tmp_path / "together"
    general = config(general_importance="random", embeddings="frequency")
    first = measure_importance(measuring(general, tiny_bert, corpus, "general"), before)
    assert (first.rows, first.tokens, first.device_seconds) == (0, 0, 0.0)
    expected = normalize(random_sizes(load_model(tiny_bert), 3), "paper")
    assert torch.equal(loaded(before, tiny_bert).units["inner"], expected["inner"])

    job = config(embeddings="frequency")
    own = measure_importance(measuring(job, tiny_bert, corpus), alone)
    both = measure_importance(measuring(job, tiny_bert, corpus, previous=before), together)
    old, new, found = (loaded(folder, tiny_bert) for folder in (before, alone, together))
    for kind in KINDS:
        assert torch.equal(found.units[kind], torch.maximum(old.units[kind], new.units[kind]))
    assert old.embedding is None  # general importance does not cover tokens
    assert torch.equal(found.embedding, new.embedding)  # type: ignore[arg-type]
    assert both.plasticity_own == own.plasticity == own.plasticity_own
    assert max(both.plasticity["inner"]) < min(own.plasticity["inner"])


def test_layers_that_hardly_learn_cause_warnings() -> None:
    left = {"head": [0.3, 0.02], "inner": [0.09, 0.5]}
    first, second = saturated(DasOptions(), left)
    assert first.startswith("layer 1: head units move 2.0%")
    assert second.startswith("layer 0: inner units move 9.0%")
    assert "das.plasticity_floor" in first
    assert not list(saturated(DasOptions(), plasticity_under(DasOptions(plasticity_floor=0.1), left)))


def test_files_of_an_aborted_run_are_replaced(tiny_bert: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / IMPORTANCE_FILE).write_bytes(b"half")
    (tmp_path / f".{IMPORTANCE_FILE}.1.aside").write_bytes(b"half")
    measure_importance(measuring(config(general_importance="random"), tiny_bert, corpus, "general"), tmp_path)
    assert loaded(tmp_path, tiny_bert)


def test_earlier_importance_of_another_model_is_refused(
    tiny_bert: Path, corpus: Path, tmp_path: Path, llama: Path
) -> None:
    job = config(general_importance="random")
    measure_importance(measuring(job, tiny_bert, corpus, "general"), tmp_path / "bert")
    with pytest.raises(ModelError, match="model_type is bert there and llama in this model"):
        measure_importance(measuring(job, llama, corpus, previous=tmp_path / "bert"), tmp_path / "llama")


# Tests of decoders without dropout


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    shape = LlamaConfig(**settings, intermediate_size=32, vocab_size=max(154, len(tokenizer)), initializer_range=0.2)
    torch.manual_seed(0)
    LlamaForCausalLM(shape).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("about", ["general", "domain"])
def test_decoders_without_dropout_can_be_measured(about: Any, llama: Path, corpus: Path) -> None:
    """Runs the function of a Ray task in the test's process. For general knowledge, the function injects dropout."""
    job = replace(config(), objective=ObjectiveConfig(kind="causal"))
    asked = measuring(job, llama, corpus, about)
    sums = sizes_of_share(asked, CPU, "fp32", [(0, rows_to_measure(asked)[:4]), (1, rows_to_measure(asked)[4:8])])
    assert sums.groups == 2
    assert all((each > 0).all() for each in sums.units.values())
    if about == "general":
        without = replace(asked, options=replace(DAS, injected_dropout=0.0))
        with pytest.raises(ModelError, match="has no dropout"):
            sizes_of_share(without, CPU, "fp32", [(0, rows_to_measure(asked)[:4])])


def tasks_on(has_bf16: list[bool], patch: pytest.MonkeyPatch) -> list[bool]:
    """Makes Ray run its tasks in this process, and returns a list that records each task's machine.

    Args:
        has_bf16: Whether each simulated machine supports bf16. Tasks are assigned to the machines in turn.
        patch: Fixture that undoes the changes.
    """
    ran: list[bool] = []

    def remote(task: Any, *arguments: Any) -> Any:
        ran.append(has_bf16[len(ran) % len(has_bf16)])
        patch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": ran[-1]})
        return task(*arguments)

    patch.setattr("ray.remote", lambda **_: lambda task: SimpleNamespace(remote=partial(remote, task)))
    patch.setattr("ray.get", lambda made: made)
    patch.setattr("ray.cluster_resources", dict)
    patch.setattr("adapt.train.over_rows.hide_unreserved_gpus", lambda: None)
    return ran


@pytest.mark.parametrize(("has_bf16", "as_if"), [([True, False], "fp32"), ([False, False], "fp32"), ([True], "bf16")])
def test_tasks_use_a_precision_that_all_machines_support(
    tiny_bert: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, has_bf16: list[bool], as_if: str
) -> None:
    def sums(precision: Any, machines: list[bool], tasks: int) -> Tensor:
        job = config(workers=2)
        asked = measuring(replace(job, training=replace(job.training, precision=precision)), tiny_bert, corpus)
        with monkeypatch.context() as patch:
            ran = tasks_on(machines, patch)
            found, _ = gradients_on_cluster(asked, rows_to_measure(asked))
            assert len(ran) == tasks
        return torch.cat([each.flatten() for each in found.units.values()])

    is_mixed = len(set(has_bf16)) > 1
    expected = sums(as_if, [True, True], 2)
    assert torch.equal(sums("auto", has_bf16, 4 if is_mixed else 2), expected)
    assert not torch.equal(sums("bf16" if as_if == "fp32" else "fp32", [True, True], 2), expected)


def test_batches_have_about_equal_sizes(tiny_bert: Path, corpus: Path, tmp_path: Path, ray_cluster: None) -> None:
    """Checks that nine rows at a batch size of 8 are split into 5 and 4.

    A last batch of one row would have large gradients and count as much as the batch of eight.
    """
    job = config(importance_sequences=9, importance_batch=8)
    assert measure_importance(measuring(job, tiny_bert, corpus), tmp_path).groups == 2
    rows = rows_to_measure(measuring(job, tiny_bert, corpus))
    halves = [
        sizes_of_share(measuring(job, tiny_bert, corpus), CPU, "fp32", [(0, half)]) for half in (rows[:5], rows[5:])
    ]
    sums = halves[0] + halves[1]
    expected = normalize(sums.means, "paper")
    assert torch.allclose(loaded(tmp_path, tiny_bert).units["inner"], expected["inner"], atol=1e-5)


@dataclass(frozen=True)
class WeightedOptions:
    """Options of `Weighted`."""

    factor: float = 1.0
    """Factor of the loss."""


class Weighted(MaskedLanguageModelling):
    """A user's objective with options."""

    Options = WeightedOptions


def test_own_objectives_are_measured_with_their_options(tiny_bert: Path, corpus: Path, tmp_path: Path) -> None:
    kind, wanted = f"{__name__}:Weighted", WeightedOptions(2.0)
    config = Config(objective=ObjectiveConfig(kind), objective_options=wanted)
    pretrained, seen = Pretrained(tiny_bert, tiny_bert), list[Any]()
    seen.append(_loss(Measuring(config, DAS, pretrained, (), None, "domain"))[0])

    def adding(model: Any, objective: Any, *_: Any) -> AddedUp:
        seen.append(objective)
        return AddedUp({"w": torch.ones(1)}, 1, 1)

    summing = Summing(config, pretrained, (str(corpus),), str(tmp_path), 1, "gradients", adding)
    add_up(summing, CPU, "fp32", [(0, np.arange(1))])
    assert [objective.options for objective in seen] == [wanted, wanted]

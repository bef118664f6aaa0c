"""Tests that the size of an extended model and a training length that is limited by compute are known in advance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, CorpusConfig, EvaluationConfig, ModelConfig, StorageConfig, TrainingConfig
from adapt.config.job_sections import VocabularyConfig
from adapt.job.measuring_jobs import change_vocabulary
from adapt.job.training_jobs import dapt_stages
from adapt.model.size import model_size
from adapt.runner import Done, ensure
from adapt.stage.context import Context
from adapt.stage.train import Train
from adapt.stage.training_plan import first_size
from adapt.train.capacity.flops import with_flops_as_steps
from tests.samples import sentences, write

WORDS = ("hepatitis", "nephritis", "hepatomegaly")


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    texts = [f"{text} {word} and {word}" for text in sentences(10) for word in WORDS]
    return Config(
        name="more",
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(paths=write(tmp_path / "domain.jsonl", [{"text": text} for text in texts])),
        vocabulary=VocabularyConfig(action="extend", size=3, min_count=1),
        training=TrainingConfig(sequence_length=64, max_flops=1e11, global_batch_size=4),
        evaluation=EvaluationConfig(sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def training_after(config: Config, **asked: Any) -> tuple[Train, Any]:
    """Returns the training stage that starts from the extended model, and the stage that extends the model."""
    context = Context.of(replace(config, vocabulary=replace(config.vocabulary, **asked)))
    extended = change_vocabulary(context)
    start = context.start.after(extended, own_tokenizer=True)
    return dapt_stages(Context.of(config, start)).training, extended


@pytest.mark.parametrize("asked", [{}, {"module": "exbert"}, {"module": "exbert", "module_share": 0.5}])
def test_dimensions_are_known_before_the_model_is_made(config: Config, asked: dict[str, Any]) -> None:
    training, extended = training_after(config, **asked)
    ahead = first_size(training.start, Done({}))
    done = ensure(extended, Context.of(config).store)
    made = first_size(training.start, Done({extended.key: done.record}))
    assert made == model_size(done.path)
    assert ahead
    assert made
    for name in ("vocabulary", "heads", "inner", "attention", "layer_parameters", "beside", "embedding_parameters"):
        assert getattr(ahead, name) == getattr(made, name), name
    # the size known in advance ignores biases and norms
    assert ahead.parameters == pytest.approx(made.parameters, rel=0.02)
    assert made.beside == (2 if asked else 1)


def test_an_elbow_counts_no_new_tokens_in_advance(config: Config, tiny_bert: Path) -> None:
    training, _ = training_after(config, size="elbow")
    assert first_size(training.start, Done({})) == model_size(tiny_bert)


def test_a_training_is_as_long_as_its_compute(config: Config) -> None:
    """A module makes each training step more expensive, so the same limit of FLOPs allows fewer steps."""
    plain, (module, _) = dapt_stages(Context.of(config)).training, training_after(config, module="exbert")
    steps = []
    for training in (plain, module):
        forecast = training.forecast({})
        assert forecast
        assert forecast.flops
        assert 1e11 <= forecast.flops < 1.1e11  # the length is rounded up to whole steps
        limited = with_flops_as_steps(config, first_size(training.start, Done({})), None)
        assert forecast.tokens == (limited.training.max_steps or 0) * 4 * 64
        steps.append(limited.training.max_steps)
    assert steps[1] < steps[0]


def test_keys_without_a_limit_of_flops_are_unchanged(config: Config) -> None:
    limited, free = (
        dapt_stages(Context.of(replace(config, training=replace(config.training, max_flops=flops)))).training
        for flops in (1e11, None)
    )
    assert limited.what()["training"]["max_flops"] == 1e11
    assert "max_flops" not in free.what()["training"]

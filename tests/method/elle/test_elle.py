"""Tests ELLE: which steps replay past text, the loss of these steps, and the inputs of later domains."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from adapt.config import Config, CorpusConfig, MethodConfig, SequenceConfig, SourceConfig, TrainingConfig
from adapt.job.sequence_job import sequence_stages
from adapt.job.training_jobs import dapt_stages
from adapt.method.base import Domain, Setting
from adapt.method.elle.grown_model import BEFORE_HEAD
from adapt.method.elle.method import TEXT, Elle, ElleOptions
from adapt.model.additions.table import KEY
from adapt.model.architecture import PATTERNS
from adapt.objective.objective import Batch
from adapt.stage.context import Context
from adapt.support.errors import ConfigError, ModelError
from tests.job.worlds import sequence_world
from tests.method.elle.test_past_text import text_folder
from tests.train.capacity.test_memory import ROBERTA
from tests.train.toy import Objective, columns, model

STEPS = 400


def begun(tmp_path: Path, **options: Any) -> tuple[Elle, Any]:
    method = Elle(ElleOptions(**{"layers": [], "heads": [], "prompt_length": 0, **options}))
    setting = Setting(past={f"{TEXT}1": text_folder(tmp_path, 1)}, length=STEPS, seed=3)
    return method, method.prepare_model(model(), setting)


def parts() -> list[Any]:
    return Objective().corrupt(Batch.of(columns(0))).split(3)


def test_a_replaying_step_has_the_mean_loss_of_past_rows(tmp_path: Path) -> None:
    """Compares the loss over three passes of a step with transformers' own loss on the same rows of past text."""
    method, toy = begun(tmp_path, recovery_fraction=1.0)
    losses = [loss for loss, _ in method.losses(toy, parts(), Objective(), 5, predictions=37)]
    assert len(losses) == 3
    assert method._past
    _, batch = method._past.rows(8, slice(0, None), 12, (), (3 ^ 0x0E11E, 5))
    seen, logits = Objective().corrupt(batch), []
    for row, real, starts in zip(seen.input_ids, seen.real, seen.starts, strict=True):
        cuts = [*starts[real].nonzero().flatten().tolist(), int(real.sum())]
        texts = [row[begin:end] for begin, end in itertools.pairwise(cuts)]
        logits.append(torch.cat([toy.eval()(input_ids=text[None]).logits[0] for text in texts]))
    expected = cross_entropy(torch.cat(logits)[seen.positions[seen.real]], seen.targets)
    torch.testing.assert_close(sum(losses) / 37, expected, rtol=1e-4, atol=1e-4)
    method.after_step(None, 5)
    assert method._past.losses[f"{TEXT}1"] == pytest.approx([expected.item()], rel=1e-4)
    assert method.report() == {"replayed_steps": 1.0}
    assert method.report() == {"replayed_steps": 0.0}


def test_the_first_steps_and_a_share_of_the_others_replay(tmp_path: Path) -> None:
    method, _ = begun(tmp_path, recovery_fraction=0.25, replay_fraction=0.1)
    replayed = [method._replays(step) for step in range(STEPS)]
    assert all(replayed[:100])
    assert 15 <= sum(replayed[100:]) <= 45
    assert replayed == [method._replays(step) for step in range(STEPS)]


def test_the_first_domain_is_plain_training_of_a_larger_model() -> None:
    method = Elle(ElleOptions(layers=[1], heads=[1], recovery_fraction=1.0, prompt_length=0))
    toy = method.prepare_model(model(), Setting(length=STEPS))
    assert toy.config.num_hidden_layers == toy.config.num_attention_heads == 3
    with torch.no_grad():
        for (loss, _), part in zip(method.losses(toy, parts(), Objective(), 0, 37), parts(), strict=True):
            assert loss == Objective().loss(toy, part)
    assert method.state() == {}


def test_each_domain_passes_its_text_to_later_domains() -> None:
    method, past = Elle(ElleOptions()), {}
    for text in ("first", "second"):
        stages: Any = (text,)
        past |= method.after_domain(Domain(Config(), None, stages, past))  # type: ignore[arg-type]
    assert past == {f"{TEXT}1": "first", f"{TEXT}2": "second"}


def test_every_domain_grows_by_its_entry_and_trained_size_agrees() -> None:
    method = Elle(ElleOptions(layers=[2, 1], heads=[2]))
    last = method.trained_size(ROBERTA, range(1, 4))
    assert (last.layers, last.heads, last.hidden) == (ROBERTA.layers + 3, ROBERTA.heads + 2, ROBERTA.hidden * 7 // 6)
    step_by_step = method.trained_size(method.trained_size(ROBERTA, range(1, 2)), range(2, 3))
    assert step_by_step == last
    assert last.parameters > 1.4 * ROBERTA.parameters


def test_all_known_architectures_can_grow(tiny_bert: Path, tmp_path: Path) -> None:
    assert BEFORE_HEAD.keys() == PATTERNS.keys()
    Elle(ElleOptions(layers=[1], heads=[1], prompt_length=0)).check(Config(), tiny_bert)
    (tmp_path / "config.json").write_text(f'{{"model_type": "bert", "{KEY}": [{{"kind": "adapters"}}]}}')
    with pytest.raises(ModelError, match=r"cannot be grown \(method\.kind elle\): it carries adapters"):
        Elle(ElleOptions()).check(Config(), tmp_path)


def test_spikes_are_not_judged_if_steps_replay_earlier_domains(tiny_bert: Path) -> None:
    one, two = (CorpusConfig(sources=[SourceConfig(name, paths=name) for name in names]) for names in ("a", "ab"))
    replaying = ElleOptions(layers=[], heads=[], prompt_length=0)
    for on_spike in ("stop", "skip"):
        training = TrainingConfig(on_spike=on_spike)
        with pytest.raises(ConfigError, match=rf"training\.on_spike is {on_spike}, but some steps of method"):
            Elle(replaying).check(Config(corpus=two, training=training), tiny_bert)
        Elle(replaying).check(Config(corpus=one, training=training), tiny_bert)
        alone = Config(corpus=two, training=training, sequence=SequenceConfig(order=["b"]))
        Elle(replaying).check(alone, tiny_bert)
        without = replace(replaying, recovery_fraction=0.0, replay_fraction=0.0)
        Elle(without).check(Config(corpus=two, training=training), tiny_bert)


def test_spikes_are_judged_in_a_single_training_on_several_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sequence_world(tmp_path, monkeypatch)
    options = ElleOptions(layers=[], heads=[], prompt_length=0)
    training = replace(config.training, on_spike="skip")
    config = replace(config, method=MethodConfig("elle"), method_options=options, training=training, tasks=[])
    assert dapt_stages(Context.of(config)).training.config.training.on_spike == "skip"
    with pytest.raises(ConfigError, match=r"training\.on_spike is skip, but some steps of method"):
        sequence_stages(Context.of(config))

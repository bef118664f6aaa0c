"""Tests of stages after a vocabulary extension: training of the new rows, and domain training under ZeRO 3."""

import json
from dataclasses import replace

import pytest
import torch

from adapt.config import Config, MethodConfig, ResourcesConfig
from adapt.job.measuring_jobs import VOCABULARY_JOB, change_vocabulary
from adapt.job.training_jobs import dapt_stages
from adapt.method.frozen_parts import FreezeOptions
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import Done, ensure
from adapt.runner.record import Record, read_result
from adapt.show.blocks import TextBlock
from adapt.stage.context import Context
from adapt.stage.vocabulary_stages import Taught, TeachRows, teach
from tests.stage.test_extend_vocabulary import asking, config  # noqa: F401  a fixture


def test_only_new_rows_are_changed_by_distilling_and_warming_up(
    config: Config,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = asking(config, init="distill", warmup_steps=2, learning_rate=1e-2, snippets=50)
    config = replace(config, training=replace(config.training, sequence_length=16))
    context = Context.of(config)
    warmed = change_vocabulary(context)
    assert isinstance(warmed, TeachRows)
    distilled = warmed.beginning
    assert isinstance(distilled, TeachRows)
    assert (warmed.way, distilled.way, distilled.beginning) == ("warmup", "distill", distilled.extended)
    extended = ensure(distilled.extended, context.store)
    folder = extended.path.parent / "distilled"
    folder.mkdir()
    found = teach(distilled, Done({distilled.extended.key: extended.record}), folder)
    assert found.tokens == 3
    assert found.after < found.before
    records = {distilled.extended.key: extended.record, distilled.key: _record(extended.record, folder, found)}
    after = extended.path.parent / "warmed"
    after.mkdir()
    assert teach(warmed, Done(records), after).steps == 2
    new = [each["id"] for each in json.loads((extended.path / "words.json").read_text())]
    first, second, third = (load_model(path).state_dict() for path in (extended.path, folder, after))
    table = "bert.embeddings.word_embeddings.weight"
    for before, now in ((first, second), (second, third)):
        assert not torch.equal(before[table][new], now[table][new])
        assert torch.equal(before[table][: new[0]], now[table][: new[0]])
        assert all(torch.equal(before[name], now[name]) for name in before if len(before[name]) != len(before[table]))
    assert load_tokenizer(after).tokenize("nephritis") == ["nephritis"]
    record = replace(records[distilled.key], what={"way": "distill"}, inputs={"extended": {"path": str(extended.path)}})
    lines = [block.text for block in read_result(Taught, record).blocks(record) if isinstance(block, TextBlock)]
    assert lines[0].startswith("Added 3 words of the corpus as tokens")
    assert "Embeddings of 3 new tokens were trained for 2 steps: mean squared error of hidden states" in lines[-2]


def _record(like: Record, path, found) -> Record:  # type: ignore[no-untyped-def]
    return replace(like, stage="taught", path=path, metrics=vars(found))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_an_extended_model_is_adapted_with_its_tokens(config: Config) -> None:  # noqa: F811
    training = replace(config.training, sequence_length=16, global_batch_size=4, max_steps=2, epochs=None)
    corpus = replace(config.corpus, heldout_fraction=0.2)
    resources = ResourcesConfig(workers=1, zero_stage=3)
    vocabulary = replace(config.vocabulary, module="exbert")
    config = replace(config, training=training, corpus=corpus, resources=resources, vocabulary=vocabulary)
    config = replace(config, method=MethodConfig("freeze"), method_options=FreezeOptions(all_but_module=True))
    context = Context.of(config)
    extended = change_vocabulary(context)
    start = context.start.after(extended, VOCABULARY_JOB.own_tokenizer)
    exported = ensure(dapt_stages(replace(context, start=start)), context.store)
    folder = exported.path
    tokenizer, size = load_tokenizer(folder), ensure(extended, context.store).result.vocabulary
    assert tokenizer.tokenize("nephritis") == ["nephritis"]
    before, after = (load_model(each).state_dict() for each in (ensure(extended, context.store).path, folder))
    assert before.keys() == after.keys()
    for name, weight in after.items():
        if len(weight) == size:
            assert torch.equal(weight[:-3], before[name][:-3]), name
            assert not torch.equal(weight[-3:], before[name][-3:]), name
        else:
            is_new = ".extension." in name or ".gate." in name
            assert is_new or torch.equal(weight, before[name]), name
    assert any(not torch.equal(before[name], after[name]) for name in after if ".gate." in name)
    assert "carries exbert in addition to its architecture" in (folder / "README.md").read_text()

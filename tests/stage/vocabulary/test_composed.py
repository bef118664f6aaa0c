"""An extended model is adapted under ZeRO 3 with its own tokenizer, from the files to the exported model.

It has exBERT's module, which alone learns, with the rows of its tokens.
"""

from dataclasses import replace

import pytest
import torch

from adapt.config import Config, MethodConfig, ResourcesConfig
from adapt.job.training_jobs import dapt_stages
from adapt.job.vocabulary_job import VOCABULARY_JOB, change_vocabulary
from adapt.method.freeze import FreezeOptions
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import ensure
from adapt.stage.context import Context
from tests.stage.vocabulary.test_extend import config  # noqa: F401  a fixture


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
    assert "carries exbert beside its architecture" in (folder / "README.md").read_text()

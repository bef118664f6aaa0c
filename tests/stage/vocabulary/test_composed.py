"""An extended model is adapted under ZeRO 3 with its own tokenizer, from the files to the exported model."""

from dataclasses import replace

import pytest
import torch

from adapt.config import Config, ResourcesConfig
from adapt.job.dapt import dapt
from adapt.job.vocabulary import JOB, change_vocabulary
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
    config = replace(config, training=training, corpus=corpus, resources=resources)
    context = Context.of(config)
    extended = change_vocabulary(context)
    start = context.start.after(extended, JOB.own_tokenizer)
    exported = ensure(dapt(replace(context, start=start)), context.store)
    folder = exported.path
    tokenizer, size = load_tokenizer(folder), ensure(extended, context.store).result.vocabulary
    assert tokenizer.tokenize("nephritis") == ["nephritis"]
    before = load_model(ensure(extended, context.store).path).get_input_embeddings().weight
    after = load_model(folder).get_input_embeddings().weight
    assert before.shape[0] == after.shape[0] == size
    assert not torch.equal(before[-3:], after[-3:])

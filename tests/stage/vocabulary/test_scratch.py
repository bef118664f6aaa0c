"""The stage: a model and a tokenizer that training can begin with."""

import pytest

from adapt.config import Config
from adapt.errors import ConfigError
from adapt.job.vocabulary_job import VOCABULARY_JOB, change_vocabulary
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import ensure
from adapt.stage.context import Context
from tests.show.shown import show_result
from tests.stage.vocabulary.test_extend import asking, config  # noqa: F401  a fixture


def test_a_beginning(config: Config, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    context = Context.of(asking(config, action="scratch", size=120))
    stage = change_vocabulary(context)
    finished = ensure(stage, context.store)
    assert finished.result.vocabulary == len(load_tokenizer(finished.path)) <= 120
    assert finished.result.parameters == load_model(finished.path).num_parameters()
    assert VOCABULARY_JOB.training
    assert VOCABULARY_JOB.training(stage) is stage
    show_result(finished)
    assert "random parameters" in capsys.readouterr().err


def test_there_is_no_elbow(config: Config) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="there are none"):
        change_vocabulary(Context.of(asking(config, action="scratch", size="elbow")))

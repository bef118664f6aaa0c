"""Fine-tuning of a model with parts for each domain takes those that are named, or those nearest to the train split."""

from pathlib import Path
from typing import Any

import pytest
import torch

from adapt.config import Config, FinetuneConfig, TrainingConfig
from adapt.errors import ModelError
from adapt.finetune.work import finetune_work
from adapt.model.additions.adapters import attach_adapters
from adapt.model.additions.config import with_addition
from adapt.model.additions.domains import attach_domains, domains_of, own_parameters
from adapt.model.additions.route import prototype_of
from adapt.model.export import save_model
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.task.data import Split
from tests.finetune.toy import toy

OPTIONS = {"width": 4, "form": "sequential", "placement": "both", "scale": 1.0}


@pytest.fixture
def parts(tiny_bert: Path, tmp_path: Path) -> Path:
    """A model with adapters for two domains; the prototype of `near` is made of the task's train split."""
    toy(tmp_path / "task", "single_label")
    model = load_model(tiny_bert)
    attach_adapters(model, 2, **OPTIONS)  # type: ignore[arg-type]
    attach_domains(model, ["near", "far"])
    for number in (0, 1):
        draw = torch.Generator().manual_seed(number)
        for parameter in own_parameters(model, number):
            parameter.data = torch.randn(parameter.shape, generator=draw) / 4
    known = domains_of(model)
    assert known is not None
    known.learn("near", prototype_of(model, Split.load(tmp_path / "task", "train").tokens))
    known.learn("far", torch.full((32,), 9.0))

    def enter(config: Any) -> None:
        with_addition(config, "adapters", sets=2, **OPTIONS)
        with_addition(config, "domains", names=["near", "far"])

    save_model(tiny_bert, model.state_dict(), load_tokenizer(tiny_bert), tmp_path / "model", resize=enter)
    return tmp_path / "model"


def run(model: Path, domain: str | None, mode: str = "feature_extraction") -> Any:
    finetune = FinetuneConfig(mode=mode, epochs=1, pooling="mean", domain=domain)  # type: ignore[arg-type]
    config = Config(training=TrainingConfig(precision="fp32"), finetune=finetune)
    return finetune_work(config, Pretrained(model, model), model.parent / "task", 0, model.parent / "out")


@pytest.mark.heavy
def test_the_parts_that_are_named_or_nearest(parts: Path) -> None:
    nearest, near, far = (run(parts, domain) for domain in (None, "near", "far"))
    assert nearest.predictions == near.predictions != far.predictions
    told = [(found.metrics["domain"], found.metrics["nearest_domain"]) for found in (nearest, near, far)]
    assert told == [("near", "near"), ("near", "near"), ("far", "near")]
    with pytest.raises(ModelError, match="no parts for the domain 'law'"):
        run(parts, "law")


def test_an_ordinary_model_has_none_to_name(tiny_bert: Path, tmp_path: Path) -> None:
    toy(tmp_path / "task", "single_label")
    config = Config(finetune=FinetuneConfig(domain="law"))
    with pytest.raises(ModelError, match="no parts for single domains"):
        finetune_work(config, Pretrained(tiny_bert, tiny_bert), tmp_path / "task", 0, tmp_path / "out")


def test_the_model_is_not_kept_without_its_parts(parts: Path) -> None:
    config = Config(finetune=FinetuneConfig(save_model=True, pooling="first"))
    with pytest.raises(ModelError, match=r"finetune.save_model: it carries adapters, domains"):
        finetune_work(config, Pretrained(parts, parts), parts.parent / "task", 0, parts.parent / "out")

"""Tests fields of the configuration: which fields determine results, the defaults, and the recipes."""

import re
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path

import pytest

from adapt.config import Config, CorpusConfig, FinetuneConfig, TrainingConfig, flat, what
from adapt.config.fields import read_fields
from adapt.parse import parse
from adapt.support.errors import ConfigError
from adapt.train.phases import check_phases, phases_of
from adapt.train.schedule import RunLength, learning_rate

_FILES = sorted((Path(__file__).parents[1] / "jobs" / "recipes").glob("*.yaml"))
# tests/chain reads the other recipes, which are chains
RECIPES = [file for file in _FILES if "\nstages:" not in file.read_text()]


def test_flat_names_every_field_by_its_section() -> None:
    config = Config(seed=3, training=TrainingConfig(max_steps=7))
    sections = {
        field.name: getattr(config, field.name)
        for field in fields(Config)
        if field.name not in ("method_options", "objective_options", "select_options", "export_options")
    }
    names = {
        f"{section}.{field.name}" if is_dataclass(content) else section
        for section, content in sections.items()
        for field in (fields(content) if is_dataclass(content) else [None])
    }
    assert set(flat(config)) == names
    assert (flat(config)["seed"], flat(config)["training.max_steps"]) == (3, 7)
    assert {name: value for name, value in flat(config).items() if value != flat(Config())[name]} == {
        "seed": 3,
        "training.max_steps": 7,
    }


def test_what_contains_only_fields_that_determine_results() -> None:
    corpus = what(CorpusConfig(paths="a", max_bad_fraction=0.5, text_field="body"))
    assert corpus["text_field"] == "body"
    assert corpus["heldout_fraction"] == 0.01
    assert not {"paths", "max_bad_fraction"} & corpus.keys()


def test_lists_are_not_shared_between_configurations() -> None:
    assert CorpusConfig().paths is not CorpusConfig().paths


def test_an_error_names_the_wrong_field_and_not_a_text_that_is_a_number() -> None:
    assert read_fields(FinetuneConfig, {"epochs": "40", "patience": None}).epochs == 40
    with pytest.raises(ConfigError, match=r"^finetune\.patience takes int or null, not long"):
        read_fields(FinetuneConfig, {"epochs": "40", "patience": "long"}, "finetune")


def test_a_configuration_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().seed = 1  # type: ignore[misc]


# Hyperparameters of domain-adaptive pre-training from table 13 of Don't Stop Pretraining. Other values are from the
# RoBERTa paper, because the authors use RoBERTa's training recipe.
PAPER = {
    "model.path": "FacebookAI/roberta-base",
    "objective.kind": "mlm",
    "objective.mask_fraction": 0.15,
    "training.learning_rate": 5e-4,
    "training.warmup_fraction": 0.06,
    "training.weight_decay": 0.01,
    "training.beta1": 0.9,
    "training.beta2": 0.98,
    "training.epsilon": 1e-6,
    "training.global_batch_size": 2048,
    "training.sequence_length": 512,
}


def test_the_defaults_are_those_of_the_paper() -> None:
    assert {name: flat(Config())[name] for name in PAPER} == PAPER


def test_the_recipe_of_the_paper_has_the_values_of_the_paper() -> None:
    recipe = next(path for path in RECIPES if path.stem == "roberta_dapt")
    config = flat(parse(["--config", str(recipe), "--corpus.paths=a"], "jobs/dapt.py"))
    assert {name: config[name] for name in PAPER} == PAPER
    assert config["training.max_steps"] == 12_500


def test_the_recipe_for_modernbert_has_the_two_published_phases() -> None:
    recipe = next(path for path in RECIPES if path.stem == "modernbert_dapt")
    config = parse(["--config", str(recipe), "--corpus.paths=a"], "jobs/dapt.py")
    check_phases(config)
    stable, decay = phases_of(config)
    assert [phase.config.objective.mask_fraction for phase in (stable, decay)] == [0.3, 0.15]
    assert config.evaluation.mask_fraction == 0.15
    assert [learning_rate(stable.config.training, step, 95) for step in (0, 94)] == [3e-4, 3e-4]
    falling = [learning_rate(decay.config.training, step, 100) for step in (0, 25, 99)]
    assert falling == pytest.approx([3e-4 * (0.001 + 0.999 * (1 - (step / 100) ** 0.5)) for step in (0, 25, 99)])
    assert [phase.steps(RunLength(1000, 1)) for phase in (stable, decay)] == [950, 50]


def test_the_recipe_for_decoders_warms_up_replays_and_decays_again() -> None:
    recipe = next(path for path in RECIPES if path.stem == "decoder_cpt")
    config = parse(["--config", str(recipe), "--corpus.paths=a"], "jobs/dapt.py")
    rates = [learning_rate(config.training, step, 1000) for step in (0, 9, 505, 999)]
    assert rates == pytest.approx([3e-5, 3e-4, 1.65e-4, 3e-5], rel=1e-3)
    assert (config.objective.kind, config.mixture.replay_fraction) == ("causal", 0.05)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_valid(recipe: Path) -> None:
    names_it = re.search(r"^\s+(source: docstrings|sources:)", recipe.read_text(), re.MULTILINE)
    corpus = [] if names_it else ["--corpus.paths=a"]
    config = parse(["--config", str(recipe), *corpus], "jobs/dapt.py")
    assert config != replace(Config(), corpus=config.corpus)
    assert config.name != Config().name

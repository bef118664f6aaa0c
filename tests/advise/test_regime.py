"""Tests how advice classifies a training run by the size and repetition of its text, and what it then recommends."""

from adapt.advise.advice import recommend
from adapt.advise.evidence import DAPT, Costs, ModelFacts
from adapt.advise.regime import Regime
from adapt.config import Config, MixtureConfig, ObjectiveConfig, TrainingConfig
from tests.advise.cases import RECIPES, case, cost, text

SMALL = Regime(parameters=100_000_000, tokens=1_000_000, passes=8.0)


def test_the_size_is_that_of_the_text_for_the_model() -> None:
    sizes = {tokens: Regime(1_000_000, tokens, None).size for tokens in (999_999, 1_000_000, 19_999_999, 20_000_000)}
    assert list(sizes.values()) == ["small", "limited", "limited", "ample"]
    assert SMALL.sentence() == (
        "Regime: small text, 0.01 tokens of the domain per parameter (1,000,000 tokens, 100.0 M parameters); each of"
        " these tokens is read 8 times."
    )
    mixed = Regime(100_000_000, 1_000_000, 8.0, general_passes=0.25, general_share=0.1)
    assert mixed.sentence().endswith("read 8 times, each token of general text 0.25 times (10% of the rows).")


def test_each_setting_has_a_recommendation_with_its_source_and_what_it_was_tested_on() -> None:
    found = {each.setting: each for each in SMALL.recommendations(Config())}
    assert list(found) == ["weight decay", "epochs", "share of general text", "several seeds"]
    assert all("arXiv" in each.source and "decoders" in each.tested for each in found.values())
    assert "small encoder" in found["weight decay"].tested
    assert "100 passes" in found["epochs"].tested
    causal = Config(objective=ObjectiveConfig(kind="causal"))
    others = {each.setting: each for each in SMALL.recommendations(causal)}
    assert others["weight decay"].tested == "decoders from scratch"
    assert "encoders" not in others["epochs"].tested


def test_without_general_text_the_advice_suits_the_kind_of_model() -> None:
    for objective, kind in (("causal", "replay_kind self"), ("mlm", "method.kind distill")):
        config = Config(objective=ObjectiveConfig(kind=objective))
        found = {each.setting: each for each in SMALL.recommendations(config)}["share of general text"]
        assert kind in found.advice
        assert "2605.26097" in found.source


def test_what_is_already_done_is_not_recommended() -> None:
    tuned = Config(training=TrainingConfig(weight_decay=1.0))
    assert "weight decay" not in {each.setting for each in SMALL.recommendations(tuned)}
    ranges = {
        decay: SMALL.recommendations(Config(training=TrainingConfig(weight_decay=decay)))[0] for decay in (0.01, 0.2)
    }
    assert [each.advice.split(" (")[0] for each in ranges.values()] == [
        "try 0.1 to 3 instead of 0.01",
        "try 0.3 to 3 instead of 0.2",
    ]
    once = Regime(100_000_000, 1_000_000, 1.0)
    assert "weight decay" not in {each.setting for each in once.recommendations(Config())}
    assert Regime(1_000_000, 50_000_000, 1.0).recommendations(Config()) == []


def test_more_repeats_are_useful_next_to_general_text() -> None:
    def epochs(passes: float, share: float = 0.0) -> str:
        found = Regime(100_000_000, 1_000_000, passes, general_share=share).recommendations(Config())
        return next(each.advice for each in found if each.setting == "epochs")

    assert "are few" in epochs(2)
    assert "useful range" in epochs(10)
    assert "are many" in epochs(18)
    assert "useful range" in epochs(18, share=0.1)
    assert "are many" in epochs(25, share=0.1)


def test_advice_names_the_regime_of_the_corpus() -> None:
    config = Config(mixture=MixtureConfig(replay_paths="g", replay_fraction=0.2), training=TrainingConfig(epochs=4.0))
    given = case(config=config, model=ModelFacts(parameters=110_000_000), corpus=text(tokens=2_000_000))
    given = type(given)(given.config, given.evidence, Costs(RECIPES, dapt_tokens=10_000_000), given.model)
    found = recommend(given, [])
    assert found.regime is not None
    assert found.regime.tokens == round(2_000_000 * (1 - config.corpus.heldout_fraction))
    assert found.regime.passes == 8_000_000 / found.regime.tokens
    assert (found.regime.general_share, found.regime.general_passes) == (0.2, None)
    assert [each.setting for each in found.recommendations] == [
        *("weight decay", "epochs", "share of general text", "several seeds"),
    ]
    assert recommend(case({DAPT: cost(1)}), []).regime is None  # the size of the model is not known


def test_generated_text_counts_as_general_text_of_unknown_size() -> None:
    """Checks a job that replays generated text, and neither configures nor measures files of general text."""
    config = Config(mixture=MixtureConfig(replay_kind="self", replay_fraction=0.2), training=TrainingConfig(epochs=4.0))
    given = case(config=config, model=ModelFacts(parameters=110_000_000), corpus=text(), general=text())
    given = type(given)(given.config, given.evidence, Costs(RECIPES, dapt_tokens=10_000_000), given.model)
    found = recommend(given, []).regime
    assert found is not None
    assert (found.general_share, found.general_passes) == (0.2, None)

"""The model card says what was measured, in the form the Hugging Face Hub reads."""

import math
import re
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from adapt.evaluate.card import CardFacts, card_verdict, model_card
from adapt.evaluate.results import Estimate, LossChange, Text


def result(text: Text, before: float, after: float, half: float = 0.05) -> LossChange:
    estimates = [Estimate(value, value - half, value + half) for value in (before, after, after - before)]
    return LossChange(text, 123456, *estimates)


def facts(**changes: Any) -> CardFacts:
    values: dict[str, Any] = {
        "name": "bert-chem",
        "base_model": "FacebookAI/roberta-base",
        "corpus": {"source": "a|b {x}", "documents": 1200, "tokens": 3400000, "digest": "abc123"},
        "objective": "mlm",
        "training": {"learning_rate": 5e-4, "max_steps": 12500},
        "results": [result("domain", 4.0, 3.0), result("general", 3.0, 3.2)],
        "lineage": [("prepare", "k1", "runs/prepare"), ("train", "k2", "p")],
        "packages": {"torch": "2.13.0"},
        **changes,
    }
    return CardFacts(**values)


def test_front_matter_is_what_the_hub_reads() -> None:
    data = ModelCard(model_card(facts())).data.to_dict()
    assert data["base_model"] == "FacebookAI/roberta-base"
    assert data["library_name"] == "transformers"
    assert data["pipeline_tag"] == "fill-mask"
    assert "license" not in data
    assert "domain-adaptation" in data["tags"]


@pytest.mark.parametrize("path", ["demo:bert-tiny", "/models/mine", "./mine", "../a", "~/mine"])
def test_base_model_that_is_no_id_is_named_in_the_text_only(path: str) -> None:
    card = model_card(facts(base_model=path))
    assert "base_model" not in yaml.safe_load(card.split("---")[1])
    assert f"`{path}` adapted to a domain by masked language modelling" in card


def test_a_model_with_additions_is_not_loaded_by_transformers_alone() -> None:
    card = model_card(facts(additions=["adapters", "exbert"], objective="causal"))
    assert "carries adapters, exbert beside its architecture" in card
    assert "load_model(Path(folder), causal=True)" in card
    assert "from_pretrained(folder)\ntokenizer" not in card


def test_a_model_with_parts_for_domains_says_how_to_choose_them() -> None:
    card = model_card(facts(additions=["adapters"], domains=["cs", "bio"]))
    assert "parts for each of these domains: cs, bio." in card
    assert "load_model(Path(folder), causal=False, domain='bio')" in card
    assert "domain=" not in model_card(facts(additions=["adapters"]))


def test_every_fact_is_in_the_card() -> None:
    card = model_card(facts())
    for cell in ("bert-chem", "a\\|b {x}", "1,200", "3,400,000", "abc123", "0.0005", "12,500", "2.13.0"):
        assert cell in card, cell
    assert "| prepare | k1 | runs/prepare |" in card
    assert "AutoModelForMaskedLM.from_pretrained" in card
    headings = re.findall("^## (.*)$", card, re.MULTILINE)
    assert headings == [
        "What it was adapted on", "How to load it", "Results", "Training settings", "Lineage", "Package versions"
    ]  # fmt: skip


def test_results_give_loss_and_perplexity_with_intervals() -> None:
    row = next(line for line in model_card(facts()).splitlines() if line.startswith("| domain"))
    assert "4.000 (3.950 to 4.050)" in row
    assert "3.000 (2.950 to 3.050)" in row
    assert "-1.000 (-1.050 to -0.950)" in row
    assert f"{math.exp(4):.2f} ({math.exp(3.95):.2f} to {math.exp(4.05):.2f})" in row


def test_few_documents_have_figures_without_intervals_and_decide_nothing() -> None:
    few = LossChange("domain", 9, Estimate(4), Estimate(3), Estimate(-1))
    assert card_verdict([few]) == (
        "On domain text the held-out loss changed by -1.000, on too few documents for an interval."
    )
    row = next(line for line in model_card(facts(results=[few])).splitlines() if line.startswith("| domain"))
    assert [cell.strip() for cell in row.split("|")[3:-1]] == ["4.000", "3.000", "-1.000", "54.60", "20.09"]


def test_verdict_says_gain_and_loss_no_stronger_than_measured() -> None:
    assert card_verdict([result("domain", 4.0, 3.0), result("general", 3.0, 3.2)]) == (
        "On domain text the held-out loss fell by 1.000 (95% interval 0.950 to 1.050) and "
        "on general text the held-out loss rose by 0.200 (95% interval 0.150 to 0.250)."
    )
    undecided = card_verdict([result("domain", 4.0, 3.99)])
    assert undecided == (
        "On domain text the held-out loss did not change measurably (-0.010, 95% interval -0.060 to +0.040)."
    )
    assert card_verdict([]).startswith("Its effect was not measured: fewer than two documents are held out")
    assert "| text |" not in model_card(facts(results=[]))
    assert "Not measured: fewer than two documents are held out" in model_card(facts(results=[]))
    of_general = model_card(facts(results=[result("general", 3.0, 3.2)]))
    assert "The domain is not among them: fewer than two documents are held out" in of_general


def test_what_the_tokenizer_does_not_know_is_said() -> None:
    assert "**Note:**" not in model_card(facts())
    assert "**Note:** the tokenizer does not know 32%." in model_card(
        facts(remarks=["the tokenizer does not know 32%"])
    )

"""Tests the finding on repeated text: it names the passes beyond which repeats stop helping."""

from itertools import product
from pathlib import Path

import numpy as np

from adapt.show.report.repeats import REPLAY, Repeated, passes_over, repeats_finding
from tests.show.report.fake_studies import Fake


def trainings(worth: float) -> list[Repeated]:
    return [
        Repeated(passes, share, 2.0 + 0.8 / (1 + worth * (1 - np.exp(-(passes - 1) / worth))) ** 0.5 + 0.1 * share)
        for passes, share in product((1.0, 2.0, 4.0, 8.0, 16.0, 32.0), (0.0, 0.2))
    ]


def test_the_passes_beyond_which_repeats_stop_helping_are_named_with_their_interval() -> None:
    finding = repeats_finding("small", trainings(2.0), 0.02)
    assert finding is not None
    assert finding.head == "Repeats of the text, 12 trainings as small"
    assert finding.text.startswith("Beyond ")
    assert "repeats lower the loss by less than 0.02 nats (95% interval" in finding.text
    assert "Lowest loss measured: 2.4" in finding.text


def test_a_loss_that_still_falls_is_said_to_be_not_reached() -> None:
    finding = repeats_finding("small", trainings(100.0), 0.001)
    assert finding is not None
    assert finding.tone == "open"
    assert "not reached within 32 passes, the most that were tried" in finding.text
    assert "to not reached)" in finding.text


def test_too_few_trainings_give_no_finding() -> None:
    assert repeats_finding("small", trainings(2.0)[:6], 0.02) is None


def test_passes_are_the_tokens_read_of_the_domain_by_its_size(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    sizes = {"a": 100, "b": 50}
    texts = {name: fake.record("prepare", name, metrics={"train_tokens": size}) for name, size in sizes.items()}
    training = fake.record("train", "t", {f"corpora.{name}": text for name, text in texts.items()})
    assert passes_over(training, {"a": 400, "b": 200, REPLAY: 999}) == 4
    assert passes_over(training, {"a": 400, "c": 200}) is None

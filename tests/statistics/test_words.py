"""What is said of a comparison."""

import numpy as np
import pytest

from adapt.statistics.compare import Comparison
from adapt.statistics.power import Chance, Side
from adapt.statistics.words import p_value, points, significant, verdict


def found(difference=0.041, low=0.012, high=0.07, p=0.008, error=0.015, least=0.001) -> Comparison:
    chance = Chance(Side(1, 0.0), Side(1, 0.0), examples=0.015**2)
    return Comparison(difference, low, high, error, p, least, ("seeds",), np.empty(0), {}, (chance,))


def test_a_finding_has_its_figures():
    assert verdict(found(), 0.032, "macro-F1") == "+4.1 macro-F1, 95% CI +1.2 to +7.0, p = .008 (Holm .032)"


def test_no_finding_is_said_in_words_with_what_could_have_been_seen():
    one = found(0.01, -0.02, 0.04, 0.41)
    text = verdict(one)
    assert text.startswith("no significant difference: +1.0 points, 95% CI \N{MINUS SIGN}2.0 to +4.0, p = .41;")
    assert one.detectable == pytest.approx(2.8 * 0.015, rel=0.03)
    seen = f"{100 * one.detectable:.1f} or more would probably have been seen (power 80%)"
    assert text.endswith(f"only a difference of about {seen}")


def test_the_corrected_p_decides():
    assert significant(found(p=0.03))
    assert not significant(found(p=0.03), 0.12)
    assert verdict(found(p=0.03), 0.12).startswith("no significant difference")


def test_too_few_seeds_are_named():
    assert "p cannot fall below .10," in verdict(found(p=0.1, least=0.1))


def test_without_p_nothing_is_claimed():
    text = verdict(found(low=None, high=None, p=None, error=None, least=None))
    assert text == "+4.1 points; one seed a side and no predictions, so nothing can be said of chance"
    assert not significant(found(p=None))


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.0079, "p = .008"), (0.0004, "p < .001"), (0.05, "p = .050"), (0.41, "p = .41"), (1.0, "p = 1.00")],
)
def test_p_in_words(p, text):
    assert p_value(p) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0412, "+4.1"), (-0.021, "\N{MINUS SIGN}2.1"), (-0.0001, "0.0"), (0, "0.0")]
)
def test_points(share, text):
    assert points(share) == text


def test_too_many_recipes_for_the_seeds_are_named():
    """5 seeds a side give at least .008; of 7 recipes none can fall below .05."""
    text = verdict(found(p=0.008, least=0.008), 0.056, recipes=7)
    assert "with so few seeds and 7 recipes p cannot fall below .056," in text
    assert "before correction" in verdict(found(p=0.2), 0.4, recipes=2)


def test_one_seed_is_said_to_be_one():
    one = Comparison(0.04, 0.01, 0.07, 0.015, 0.01, 0.001, ("examples",), np.empty(0), {})
    assert verdict(one).endswith("p = .010, of one seed: another may differ")

"""A comparison in words."""

from adapt.statistics.compare import Comparison
from adapt.statistics.seeds import LEVEL


def verdict(comparison: Comparison, adjusted: float | None = None, unit: str = "points", recipes: int = 1) -> str:
    """What was found, no stronger than the figures allow.

    Args:
        comparison: differences in shares; they are said in points, a hundredth each.
        adjusted: p after correction for several comparisons, which then decides.
        unit: what the points are of, such as `macro-F1`.
        recipes: that p was corrected for.

    Returns:
        `+4.1 macro-F1, 95% CI +1.2 to +7.0, p = .008 (Holm .032)`, or `no significant difference: ...` with the
        smallest difference that could have been seen.
    """
    figures = f"{points(comparison.difference)} {unit}"
    if comparison.low is not None and comparison.high is not None:
        figures += f", 95% CI {points(comparison.low)} to {points(comparison.high)}"
    if comparison.p is None:
        why = "seeds whose scores do not vary" if comparison.is_constant else "one seed a side"
        return f"{figures}; {why} and no predictions, so nothing can be said of chance"
    figures += f", {p_value(comparison.p)}"
    if adjusted is not None and adjusted != comparison.p:
        figures += f" (Holm {p_value(adjusted, bare=True)})"
    if comparison.over == ("examples",):
        figures += ", of seeds that do not vary" if comparison.is_constant else ", of one seed: another may differ"
    if significant(comparison, adjusted):
        return figures
    return f"no significant difference: {figures}; {_sight(comparison, recipes)}"


def significant(comparison: Comparison, adjusted: float | None = None) -> bool:
    """Whether p is below 0.05. The corrected p counts if there is one."""
    p = comparison.p if adjusted is None else adjusted
    return p is not None and p < LEVEL


def points(share: float) -> str:
    """A difference in points, with its sign."""
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")


def p_value(p: float, bare: bool = False) -> str:
    """`p = .008`, or bare `.008`; below .001 only that."""
    if p < 0.001:
        return "< .001" if bare else "p < .001"
    text = f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"
    text = text.removeprefix("0")
    return text if bare else f"p = {text}"


def out_of_reach(comparison: Comparison, recipes: int = 1, noun: str = "recipes") -> str:
    """Says that no difference could have been found with so few seeds; empty if one could.

    Args:
        comparison: with the smallest p there could have been.
        recipes: that p is corrected for.
        noun: what they are called.
    """
    least = None if comparison.least_p is None else min(1.0, recipes * comparison.least_p)
    if least is None or least < LEVEL:
        return ""
    correction = f" and {recipes} {noun}" if recipes > 1 else ""
    return f"with so few seeds{correction} p cannot fall below {p_value(least, bare=True)}, whatever the difference"


def _sight(comparison: Comparison, recipes: int) -> str:
    """Says how large a difference had to be for us to see it."""
    if text := out_of_reach(comparison, recipes):
        return text
    if comparison.detectable is None:
        return "how small a difference could have been seen is not known"
    corrected = ", before correction" if recipes > 1 else ""
    return (
        f"only a difference of about {100 * comparison.detectable:.1f} or more would probably have been seen "
        f"(power 80%{corrected})"
    )

"""Curves of pieces a word against tokens added, as a picture."""

from collections.abc import Mapping
from pathlib import Path

from adapt.vocabulary.results import DomainWords


def draw_curves(domains: Mapping[str, DomainWords], file: Path) -> None:
    """Writes a curve for each domain as PNG, its elbow marked."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, words in domains.items():
        (line,) = axes.plot([each.tokens for each in words.curve], [each.fertility for each in words.curve], label=name)
        for each in words.curve:
            if each.tokens == words.elbow:
                axes.plot(each.tokens, each.fertility, "o", color=line.get_color())
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlabel("tokens added (dot: elbow)")
    axes.set_ylabel("pieces a word")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)

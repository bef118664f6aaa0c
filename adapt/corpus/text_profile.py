"""Describes the text of a corpus: its languages, duplicates, and lines that many documents share.

A training on text in another language than the model's, or on many copies of the same pages, raises no error. So
`dontstop init` and `dontstop chain plan` show this profile before anything runs, and stage `prepare` records it.
`adapt.corpus.profile_sample` measures it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

UNCLEAR = "unclear"
"""Name of the language of documents whose language was not recognised."""
SHOWN = 5
"""Number of languages that are named. The others are summed up as `others`."""
FEWEST = 8
"""Smallest number of documents of a sample for which warnings are given."""
MOST_FOREIGN = 0.2
"""Largest share of text in languages that the model does not have, or in a second language, without a warning."""
MOST_DUPLICATES = 0.05
"""Largest share of documents that are duplicates without a warning."""
MOST_BOILERPLATE = 0.1
"""Largest share of text in lines that many documents share without a warning."""
_MULTILINGUAL = {"multilingual", "mul"}


@dataclass(frozen=True)
class TextProfile:
    """Properties of a sample of a corpus, after cleaning."""

    documents: int
    """Number of documents of the sample."""
    languages: dict[str, float]
    """Share of the text in each language [characters], keyed by ISO 639 code, in falling order. `unclear`: documents
    whose language was not recognised."""
    duplicates: float
    """Share of documents that have the text of an earlier one, without case and spaces."""
    near_duplicates: float
    """Share of documents that are near copies but not duplicates of an earlier one (see `corpus.near_threshold`)."""
    boilerplate: float
    """Share of the text in lines that many documents of the sample have [characters]."""
    model_languages: list[str] = field(default_factory=list)
    """Languages that the model's card names. Empty if it names none."""

    def faults(self, deduplicate: str = "none") -> list[str]:
        """Returns a warning with a fix for each property of the text that makes training on it a waste.

        Args:
            deduplicate: `corpus.deduplicate`. The profile is measured before duplicates are removed.
        """
        if self.documents < FEWEST:
            return []
        found = self._language_faults()
        if self.duplicates > MOST_DUPLICATES and deduplicate == "none":
            found.append(
                f"{self.duplicates:.0%} of the documents are duplicates: remove them with corpus.deduplicate: exact"
            )
        if self.near_duplicates > MOST_DUPLICATES and deduplicate != "near":
            found.append(
                f"{self.near_duplicates:.0%} of the documents are near copies of others: remove them with"
                " corpus.deduplicate: near"
            )
        if self.boilerplate > MOST_BOILERPLATE:
            found.append(
                f"{self.boilerplate:.0%} of the text is in lines that many documents share: remove menus and notices"
                " with the cleaning block boilerplate, and other lines with a block of your own"
            )
        return found

    def summary(self) -> str:
        """Returns the profile in one line, without the number of documents."""
        named = ", ".join(f"{code} {share:.0%}" for code, share in shown(self.languages).items())
        copies = f"duplicates {self.duplicates:.0%}, near duplicates {self.near_duplicates:.0%}"
        return f"languages {named or 'none'}; {copies}; lines shared by many documents {self.boilerplate:.0%}"

    def _language_faults(self) -> list[str]:
        known = {code: share for code, share in self.languages.items() if code != UNCLEAR}
        model = set(self.model_languages)
        if not known or model & _MULTILINGUAL or len(model) > SHOWN:
            return []
        keep = f"keep one language (corpus.cleaning: language: {{keep: [{next(iter(known))}]}})"
        if not model:
            second = sum(list(known.values())[1:])
            if second <= MOST_FOREIGN:
                return []
            return [f"the text has several languages ({_named(known)}): {keep}, or begin with a multilingual model"]
        foreign = {code: share for code, share in known.items() if code not in model}
        if sum(foreign.values()) <= MOST_FOREIGN:
            return []
        names = ", ".join(sorted(model))
        return [
            f"the model's card names the language {names}, and {sum(foreign.values()):.0%} of the text is in others"
            f" ({_named(foreign)}): begin with a model of this language (model.path), add its words to the vocabulary"
            f" (dontstop vocabulary extend), or keep the text in {names} only (corpus.cleaning: language)"
        ]


def read_profile(metrics: Mapping[str, Any]) -> TextProfile | None:
    """Reads the profile from the metrics of a prepared corpus; None if an older version prepared it."""
    figures = metrics.get("profile")
    return TextProfile(**figures) if figures else None


def joined_profiles(profiles: Sequence[TextProfile | None]) -> TextProfile | None:
    """Returns the profile of several sources together; None if there is none, or one was not measured.

    Shares are weighted by the numbers of documents of the samples. Copies in different sources are not counted.
    """
    known = [profile for profile in profiles if profile]
    total = sum(profile.documents for profile in known)
    if not known or len(known) < len(profiles) or not total:
        return None

    def mean(name: str) -> float:
        return float(sum(getattr(profile, name) * profile.documents for profile in known) / total)

    languages: dict[str, float] = {}
    for profile in known:
        for code, share in profile.languages.items():
            languages[code] = languages.get(code, 0.0) + share * profile.documents / total
    duplicates, near, boilerplate = map(mean, ("duplicates", "near_duplicates", "boilerplate"))
    shares = dict(sorted(languages.items(), key=lambda entry: -entry[1]))
    return TextProfile(total, shares, duplicates, near, boilerplate, known[0].model_languages)


def shown(languages: Mapping[str, float]) -> dict[str, float]:
    """Returns the most frequent languages, and the sum of the others."""
    first = dict(list(languages.items())[:SHOWN])
    rest = sum(list(languages.values())[SHOWN:])
    return {**first, **({"others": rest} if rest else {})}


def _named(languages: Mapping[str, float]) -> str:
    return ", ".join(f"{code} {share:.0%}" for code, share in shown(languages).items())

"""Tests the profile of a corpus, and the warnings about languages, copies and repeated lines."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.profile_sample import (
    SAMPLE_DOCUMENTS,
    card_languages,
    languages_of,
    near_copies,
    profile_of,
    profile_texts,
    shared_lines,
)
from adapt.corpus.shingles import normalised
from adapt.corpus.text_profile import TextProfile, joined_profiles, read_profile
from adapt.runner.digest import Digests
from tests.corpus.documents.public_domain import paragraphs

ENGLISH = paragraphs(20, 0)
GERMAN = [
    f"Die Würde des Menschen ist unantastbar. Sie zu achten ist Verpflichtung aller staatlichen Gewalt {n}."
    for n in ("hier", "dort", "heute", "morgen", "immer")
]


def near_by_definition(texts: list[str]) -> int:
    """Counts the texts that share at least 80% of their runs of five words with an earlier text (Jaccard)."""
    runs = [{tuple(words[start : start + 5]) for start in range(len(words) - 4)} for words in map(str.split, texts)]
    return sum(
        any(len(mine & other) / len(mine | other) >= 0.8 for other in runs[:number]) for number, mine in enumerate(runs)
    )


def test_shares_of_a_sample() -> None:
    edited = [text + " And so it ends." for text in ENGLISH[:3]]
    profile = profile_of([*ENGLISH, ENGLISH[0].upper(), f"  {ENGLISH[1]}\n", *edited, *GERMAN[:1]])
    assert profile.documents == 26
    assert profile.duplicates == 2 / 26
    assert profile.near_duplicates == 3 / 26
    characters = sum(map(len, [*ENGLISH, *ENGLISH[:2], *edited])) + 3
    assert profile.languages["en"] == pytest.approx(characters / (characters + len(GERMAN[0])), abs=1e-3)
    assert list(profile.languages) == ["en", "de"]
    assert sum(profile.languages.values()) == pytest.approx(1, abs=1e-3)


def test_near_copies_are_those_of_the_definition() -> None:
    texts = [normalised(text) for text in (*ENGLISH, *(text.rsplit(".", 2)[0] for text in ENGLISH))]
    texts += [" ".join(text.split()[3:]) for text in texts[:20]]
    assert near_copies(texts) == pytest.approx(near_by_definition(texts), abs=2)
    assert near_copies([]) == 0


def test_lines_that_many_documents_share() -> None:
    pages = [f"Home\nText number {number:02d}\nImprint" for number in range(10)]
    assert shared_lines(pages) == (4 + 7) / (4 + 14 + 7)
    assert shared_lines(pages[:2]) == 0
    assert shared_lines([]) == 0


def test_languages_are_recognised() -> None:
    assert [*languages_of(ENGLISH)] == ["en"]
    assert [*languages_of(GERMAN)] == ["de"]
    assert [*languages_of(["12 34", "1 2 3"])] == ["unclear"]
    assert languages_of([]) == {}


def profile(**figures: object) -> TextProfile:
    usual = {"documents": 100, "languages": {"en": 1.0}, "duplicates": 0.0, "near_duplicates": 0.0, "boilerplate": 0.0}
    return TextProfile(**{**usual, **figures})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("figures", "deduplicate", "words"),
    [
        ({}, "none", []),
        ({"duplicates": 0.2}, "none", ["20% of the documents are duplicates", "corpus.deduplicate: exact"]),
        ({"duplicates": 0.2}, "exact", []),
        ({"near_duplicates": 0.2}, "exact", ["near copies", "corpus.deduplicate: near"]),
        ({"near_duplicates": 0.2}, "near", []),
        ({"boilerplate": 0.5}, "none", ["50% of the text", "block boilerplate"]),
        ({"boilerplate": 0.5, "documents": 7}, "none", []),
        ({"languages": {"de": 1.0}}, "none", []),
        ({"languages": {"de": 1.0}, "model_languages": ["de", "en"]}, "none", []),
        ({"languages": {"de": 1.0}, "model_languages": ["multilingual"]}, "none", []),
        ({"languages": {"en": 0.9, "de": 0.1}, "model_languages": ["en"]}, "none", []),
        (
            {"languages": {"de": 0.7, "en": 0.3}, "model_languages": ["en"]},
            "none",
            [
                "names the language en",
                "70% of the text is in other languages (de 70%)",
                "model.path",
                "vocabulary",
                "cleaning",
            ],
        ),
        (
            {"languages": {"en": 0.6, "de": 0.4}},
            "none",
            ["several languages (en 60%, de 40%)", "{keep: [en]}", "multilingual model"],
        ),
    ],
)
def test_warnings_have_a_fix(figures: dict[str, object], deduplicate: str, words: list[str]) -> None:
    faults = profile(**figures).faults(deduplicate)
    assert len(faults) == bool(words)
    assert all(word in faults[0] for word in words)


def test_profiles_are_recorded_and_joined() -> None:
    english, german = profile(duplicates=0.1), profile(documents=300, languages={"de": 1.0})
    assert read_profile({"profile": json.loads(json.dumps(asdict(english)))}) == english
    assert read_profile({}) is None
    joined = joined_profiles([english, german])
    assert joined == profile(documents=400, languages={"de": 0.75, "en": 0.25}, duplicates=0.025)
    assert joined_profiles([english, None]) is None
    assert joined_profiles([]) is None
    many = profile(languages=dict.fromkeys("abcdefghij", 0.1))
    assert "a 10%, b 10%, c 10%, d 10%, e 10%, others 50%" in many.summary()


@pytest.mark.parametrize(
    ("card", "languages"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\n# Model", ["en"]),
        ("---\nlanguage:\n- de\n- zh-Hans\n---\n", ["de", "zh"]),
        ("---\nlanguage: no\n---\n", ["no"]),
        ("---\nlicense: mit\n---\n", []),
        ("# No metadata\n---\nlanguage: en\n---", []),
        ("---\nlanguage: [\n---\n", []),
        ("---\nlanguage: en\n", []),
        ("", []),
    ],
)
def test_languages_of_a_card(tmp_path: Path, card: str, languages: list[str]) -> None:
    (tmp_path / "README.md").write_text(card)
    assert card_languages(tmp_path) == languages
    assert card_languages(tmp_path / "none") == []


def test_a_sample_is_spread_over_the_files_after_cleaning(tmp_path: Path) -> None:
    for number in range(40):
        lines = [f"{text} {number} {line}" for line, text in enumerate(paragraphs(50, number))]
        (tmp_path / f"{number:02d}.txt").write_text("\n".join([*lines, "short"]))
    (tmp_path / "z.csv").write_text("id,text\n" + "".join(f"{n},a longer text in a table {n}\n" for n in range(90)))
    corpus = CorpusConfig(paths=str(tmp_path))
    texts = profile_texts(build_manifest(corpus, Digests(tmp_path / "digests.json")), corpus)
    assert len(texts) == len({*texts}) == SAMPLE_DOCUMENTS
    assert "short" not in texts
    alone = CorpusConfig(paths=str(tmp_path / "z.csv"))
    assert len(profile_texts(build_manifest(alone, Digests(tmp_path / "digests.json")), alone)) == 90


def test_a_broken_file_ends_its_part_of_the_sample(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "b.txt").write_text("\n".join(ENGLISH))
    corpus = CorpusConfig(paths=str(tmp_path))
    assert len(profile_texts(build_manifest(corpus, Digests(tmp_path / "digests.json")), corpus)) == len(ENGLISH)

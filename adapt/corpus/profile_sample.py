"""Measures the profile of a corpus on a sample: its languages, duplicates, and lines that many documents share."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from adapt.config import CorpusConfig
from adapt.corpus import minhash, sample_order, screening, shingles, text_profile
from adapt.corpus.cleaning.filters import language_classifier
from adapt.corpus.documents.document_kinds import DocumentLimits
from adapt.corpus.files.formats import DELIMITERS, MIB, Bad, format_of
from adapt.corpus.files.manifest import Manifest, Slice, items_of, read_slice, slices_of
from adapt.corpus.files.records import Reading, read_objects, texts
from adapt.model.locate import CARD
from adapt.support.errors import AdaptError

SAMPLE_ITEMS = 16
"""Maximum number of items (such as files) from which the sample is taken."""
SAMPLE_DOCUMENTS = 256
SAMPLE_BYTES = 1 * MIB
"""Limits of the sample: number of documents, and number of characters of all documents together."""
SEED = 0
LANGUAGE_CHARACTERS = 1000
"""Number of characters at the beginning of a document from which its language is recognised."""
CLEAR = 0.65
"""Minimum probability at which a language counts as recognised, as in the cleaning block `language`."""
_LINE_DOCUMENTS, _LINE_SHARE = 3, 0.02
"""Minimum number and minimum share of the documents in which a line must occur to count as boilerplate."""


def profile_of(sample: Sequence[str], model_languages: Sequence[str] = ()) -> text_profile.TextProfile:
    """Measures the languages, duplicates and repeated lines of a sample of documents.

    Args:
        sample: documents of the corpus, after cleaning.
        model_languages: languages that the model's card names.
    """
    unified = [shingles.normalised(text) for text in sample]
    seen: dict[str, int] = {}
    for number, text in enumerate(unified):
        seen.setdefault(text, number)
    distinct, count = list(seen.values()), max(len(sample), 1)
    near = near_copies([unified[number] for number in distinct])
    return text_profile.TextProfile(
        len(sample),
        languages_of(sample),
        (len(sample) - len(distinct)) / count,
        near / count,
        shared_lines([sample[number] for number in distinct]),
        [*model_languages],
    )


def languages_of(sample: Sequence[str]) -> dict[str, float]:
    """Returns each language's share of the text (by number of characters), in descending order."""
    counts: Counter[str] = Counter()
    for text in sample:
        code, score = language_classifier().classify(text[:LANGUAGE_CHARACTERS])
        counts[code if score >= CLEAR else text_profile.UNCLEAR] += len(text)
    total = sum(counts.values())
    return {code: round(count / total, 4) for code, count in counts.most_common()} if total else {}


def near_copies(unified: Sequence[str]) -> int:
    """Counts the texts that are near copies of an earlier text.

    Args:
        unified: distinct texts, normalised by `adapt.corpus.shingles.normalised`.
    """
    rule = minhash.DuplicateRule(near=True)
    signed = minhash.signatures(unified, rule.n, rule.permutations)
    found = 0
    for number in range(1, len(signed)):
        earlier = signed[:number]
        similar = minhash.estimated_jaccard(earlier, np.broadcast_to(signed[number], earlier.shape))
        found += bool((similar >= rule.threshold).any())
    return found


def shared_lines(sample: Sequence[str]) -> float:
    """Returns the share of the text (by number of characters) that is in lines that many documents contain."""
    documents = [{line for line in map(str.strip, text.splitlines()) if line} for text in sample]
    counts = Counter(line for lines in documents for line in lines)
    least = max(_LINE_DOCUMENTS, _LINE_SHARE * len(documents))
    shared = sum(len(line) * count for line, count in counts.items() if count >= least)
    total = sum(len(line) * count for line, count in counts.items())
    return shared / total if total else 0.0


def profile_texts(manifest: Manifest, corpus: CorpusConfig, must_read: bool = False) -> list[str]:
    """Reads and cleans documents from a corpus: the first documents of several parts that are spread over the corpus.

    Texts of evaluation sets are not removed.

    Args:
        manifest: the files of the corpus.
        corpus: settings for reading and cleaning the corpus.
        must_read: whether a file that cannot be read is an error. If False, such a file only ends the sampling of its
            item, because the stage that reads the whole corpus will report
            the error.

    Raises:
        AdaptError: a file cannot be read.
    """
    corpus = replace(corpus, decontaminate=[])
    items = [slices_of(item) for item in items_of(manifest, corpus)]
    order = sample_order.permute(np.arange(len(items)), max(len(items), 1), SEED, 0).tolist()[:SAMPLE_ITEMS]
    found: list[str] = []
    for number in sorted(order):
        most_documents, most = SAMPLE_DOCUMENTS // len(order) or 1, SAMPLE_BYTES // len(order)
        with nullcontext() if must_read else suppress(AdaptError):
            for text in _documents(items[number], corpus):
                found.append(text)
                most_documents, most = most_documents - 1, most - len(text)
                if most_documents <= 0 or most <= 0:
                    break
    return found


def _documents(item: Sequence[Slice], corpus: CorpusConfig) -> Iterator[str]:
    for part in item:
        yield from screening.clean(_records(part, corpus), corpus, screening.Tally(), part.place)


def _records(part: Slice, corpus: CorpusConfig) -> Iterator[str | Bad]:
    """Yields the records of a slice.

    Unlike in a job, a csv file is not read completely first to determine its quotes.
    """
    if corpus.source == "files" and format_of(part.path)[0] in DELIMITERS:
        reading = Reading(corpus.text_field, limits=DocumentLimits.of(corpus))
        return texts((record for _, record in read_objects(part.path, checks_quotes=False)), reading)
    return read_slice(part, corpus)


def card_languages(folder: Path) -> list[str]:
    """Returns the languages that a model's card names in its metadata, as codes; empty if there is no card."""
    from huggingface_hub import metadata_load  # not at the top: loading it takes 0.2 s

    try:
        metadata = metadata_load(folder / CARD) or {}
    except (OSError, ValueError, yaml.YAMLError):
        return []
    named = metadata.get("language")
    codes = named if isinstance(named, list) else [named]
    codes = ["no" if code is False else code for code in codes]  # YAML reads `no`, the code of Norwegian, as a boolean
    return [code.lower().partition("-")[0] for code in codes if isinstance(code, str)]


def profile_corpus(manifest: Manifest, corpus: CorpusConfig, model: Path) -> text_profile.TextProfile:
    """Samples a corpus that a job has already read, and returns the profile of the sample.

    Raises:
        AdaptError: a file can no longer be read. The profile would be wrong if this file were left out.
    """
    return profile_of(profile_texts(manifest, corpus, must_read=True), card_languages(model))

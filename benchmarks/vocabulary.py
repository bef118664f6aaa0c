"""Measures the time to analyse a corpus relative to tokenizing the corpus, on one thread, and the cost of new words.

`analyze_over_tokenize` is the time to count the words of a text, split the words into tokens and count the
saved tokens, divided by the time of our tokenizer (`adapt.model.tokenize`) on the same text. `extend_s` is the time to
choose 1,000 words and rebuild the tokenizer. Then the library tokenizes with 100, 1,000 and 10,000 new words, which are
either part of a rebuilt tokenizer or added tokens. All times are CPU time.
"""

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Options, Result, apart, main
from benchmarks.corpora import some_texts
from benchmarks.rounds import alternate
from benchmarks.tokenize import backend_of

TARGETS = {"analyze_over_tokenize": ("<=", 1.5), "analyze_mb_s": (">=", 3.0), "extend_s": ("<=", 30.0)}
NUMBERS = (100, 1_000, 10_000)


def measure(options: Options) -> Result:
    """Measures times and speed of analysing and extending a vocabulary, in a separate process."""
    megabytes = 10 if options.quick else 200
    result = apart(measured, megabytes, options.data, options.models)
    result.details.insert(0, ("text", f"{megabytes} MB"))
    return result


def measured(megabytes: float, data: Path | None, models: Path | None) -> Result:
    """Measures CPU times and speeds."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from adapt.model.tokenize.text_tokenizer import QuickTokenizer
    from adapt.vocabulary.analysis import analyze_words, by_saved
    from adapt.vocabulary.extension import build_reached
    from adapt.vocabulary.word_reader import WordReader, count_chunks, count_words

    texts = some_texts(megabytes, data)
    backend = backend_of("wordpiece", texts, models)
    quick = QuickTokenizer(backend, worth=0)
    quick(texts[:100])  # finds out which shortcuts the tokenizer allows, before the time is measured
    reader = WordReader(backend)
    names = {number: token for token, number in backend.get_vocab().items()}

    def tokenize() -> list[Any]:
        return [quick(texts[start : start + 1000]) for start in range(0, len(texts), 1000)]

    sides = {
        "analyze": lambda: _seconds(lambda: analyze_words(texts, WordReader(backend), names, 5)),
        "tokenize": lambda: _seconds(tokenize),
    }
    found = alternate(sides)
    analyzing, tokenizing = (found.middle(side, float) for side in sides)
    words = count_words(count_chunks(texts)[0], reader)
    candidates = by_saved(words, reader, 2)
    extending = _seconds(lambda: build_reached(backend, candidates[:1000], words))
    details = [
        ("analyze", f"{megabytes / analyzing:.1f} MB/s"),
        ("tokenize", f"{megabytes / tokenizing:.1f} MB/s"),
        ("candidates", f"{len(candidates):,}"),
    ]
    some = texts[: max(1, len(texts) // 20)]
    for number in NUMBERS:
        chosen = candidates[:number]
        rebuilt = build_reached(backend, chosen, words).rebuilt.backend
        added = _with_added(backend, [word.surface for word in chosen])
        rates = [_seconds(lambda each=each: each.encode_batch_fast(some)) for each in (backend, rebuilt, added)]
        shown = ", ".join(f"{rate:.2f} s" for rate in rates)
        details.append((f"{len(chosen):,} words: as it was, built anew, added", shown))
    result = Result({"analyze_mb_s": megabytes / analyzing, "extend_s": extending}, details)
    result.compare("analyze_over_tokenize", found.ratio("analyze", "tokenize", float))
    return result


def _with_added(backend: Any, words: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer

    added = Tokenizer.from_str(backend.to_str())
    added.add_tokens([AddedToken(word, single_word=True, normalized=True) for word in words])
    return added


def _seconds(call: Any) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


if __name__ == "__main__":
    main("vocabulary", TARGETS, measure)

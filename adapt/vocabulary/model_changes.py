"""Extends a model's vocabulary with words of domains, trims it to some texts, or creates a model with a new vocabulary.

This module imports torch.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from adapt.config import Config
from adapt.model.load import load_model, model_class, save_model
from adapt.model.locate import CONFIG, Pretrained, read_json
from adapt.model.safeguards import one_at_a_time, quiet
from adapt.model.size import ALIASES
from adapt.model.tokenize.piece_tokenizer import IDS
from adapt.model.tokenize.text_tokenizer import QuickTokenizer
from adapt.model.tokenizer import load_config, load_text_tokenizer, load_tokenizer
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError, ModelError
from adapt.terminal.console import log
from adapt.vocabulary import analysis
from adapt.vocabulary.analysis import parameters_and_compute
from adapt.vocabulary.extension import (
    Reached,
    build_reached,
    pieces_in,
    tokens_to_add,
    write_extended,
    write_extension_card,
    write_trimmed,
)
from adapt.vocabulary.trimming import SPECIAL_ID, trim_tokenizer
from adapt.vocabulary.vocabulary_results import Extended, empty_corpus
from adapt.vocabulary.word_reader import CountedWord, WordReader, count_chunks, count_words

SHOWN = 30
"""Maximum number of new tokens that are listed in the record."""
TOGETHER = 256
"""Number of documents that are tokenized at once."""


@dataclass(frozen=True)
class ExtensionTask:
    """The input of a vocabulary extension."""

    name: str
    config: Config
    start: Pretrained
    """The original model."""
    base: str
    """Name of the original model in the model card."""
    donor: Pretrained | None
    """Donor model for `vocabulary.init: omp`. Its vocabulary contains the new words. None for other initializations."""
    domains: Sequence[str]
    """Names of the domains, for messages."""
    is_listed: bool
    """Whether `vocabulary.candidates` is a file with a list of words."""


def extend_model(
    task: ExtensionTask, texts: Callable[[], Iterator[str]], general: Iterator[str] | None, folder: Path
) -> tuple[Extended, list[dict[str, Any]]]:
    """Chooses words, rebuilds the tokenizer with them, adds rows to the model, and writes it with its model card.

    Args:
        task: the model, and the options of the extension.
        texts: function that returns the documents of the domains. It may be called twice.
        general: general text, needed if `vocabulary.candidates` is `divergence`; None otherwise.
        folder: the folder in which the model is written.

    Returns:
        The result, and a list of the new tokens with their ids and the tokens into which they were split before.

    Raises:
        DataError: the domains have no words, no word can become a token, or the file of words cannot be used.
        ModelError: the tokenizer or the model cannot be extended.
    """
    config, start = task.config, task.start
    reader = WordReader(load_text_tokenizer(start).backend_tokenizer)
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    words = _words(reader, texts(), task.domains)
    found = _candidates(task, words, reader, tokenizer, texts, general)
    number = len(found) if task.is_listed else tokens_to_add(config.vocabulary.size, found, len(tokenizer))
    if number > len(found):
        log(f"{number:,} new tokens are configured (vocabulary.size), but only {len(found):,} words can become tokens")
    known = [*words, *(found if task.is_listed else [])]
    reached = build_reached(tokenizer.backend_tokenizer, found[:number], known)
    causal, asked = config.objective.kind == "causal", config.vocabulary
    share = asked.module_share if asked.module else None
    rows = write_extended(start, reached.rebuilt, asked.init, config.seed, causal, folder, task.donor, share)
    count, before = sum(word.count for word in words), sum(word.count * len(word.pieces) for word in words)
    after = pieces_in(words, WordReader(reached.rebuilt.backend))
    parameters, compute = parameters_and_compute(start.model, folder, config, 1 - after / before)
    extended = Extended(
        words=len(reached.chosen) - len(reached.rebuilt.left_out),
        steps=len(reached.rebuilt.steps),
        vocabulary=len(tokenizer) + len(reached.rebuilt.added),
        rows=rows,
        candidates=len(found),
        left_out=len(reached.rebuilt.left_out) + len(reached.unreached),
        fertility_before=before / count,
        fertility_after=after / count,
        length_saved=1 - after / before,
        init=asked.init,
        first=[word.surface for word in reached.chosen[:SHOWN]],
        parameters_added=parameters,
        compute_saved=compute,
    )
    write_extension_card(folder, task.name, task.base, extended, causal)
    return extended, list(_described(reached, tokenizer, reader))


def _candidates(
    task: ExtensionTask,
    words: Sequence[CountedWord],
    reader: WordReader,
    tokenizer: PreTrainedTokenizerFast,
    texts: Callable[[], Iterator[str]],
    general: Iterator[str] | None,
) -> list[CountedWord]:
    """Returns the words that may become tokens, the best first."""
    asked = task.config.vocabulary
    if task.is_listed:
        return analysis.from_file(Path(asked.candidates), words, reader, tokenizer.all_special_tokens)
    if asked.candidates == "divergence":
        assert general
        found = analysis.by_divergence(words, _words(reader, general, ["(general)"]), reader, asked.min_count)
    elif asked.candidates == "trained":
        trained = tokenizer.train_new_from_iterator(texts(), len(tokenizer), show_progress=False)
        found = analysis.by_training(words, trained.backend_tokenizer, reader, asked.min_count)
    else:
        found = analysis.by_saved(words, reader, asked.min_count)
    if not found:
        raise DataError(
            f"no word that occurs at least {asked.min_count} times would shorten the text if it became a token",
            "lower vocabulary.min_count, or use a larger corpus; the frequent words may already be tokens",
        )
    return found


def _words(reader: WordReader, texts: Iterable[str], domains: Iterable[str]) -> list[CountedWord]:
    """Counts the words of some texts. Raises an error that names the domains if there are no words."""
    words = count_words(count_chunks(texts)[0], reader)
    if not words:
        raise empty_corpus(", ".join(domains))
    return words


def _described(reached: Reached, tokenizer: PreTrainedTokenizerFast, reader: WordReader) -> Iterator[dict[str, Any]]:
    """Yields a description of each new token: id, old pieces and, if the token is a word, number of occurrences."""
    words = {word.word: word for word in reached.chosen}
    for token, number in reached.rebuilt.added.items():
        word = words.get(token)
        known = {"word": word.surface, "count": word.count} if word else {}
        ids = list(reader.parts(token))
        yield {"token": token, "id": number, **known, "ids": ids, "pieces": tokenizer.convert_ids_to_tokens(ids)}


def trim_model(
    config: Config, start: Pretrained, texts: Iterator[str], domains: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Writes a model without the tokens that some texts never use.

    Args:
        config: the job's configuration.
        start: the original model.
        texts: documents. Every token that occurs in them remains.
        domains: names of the domains, for messages.
        folder: the folder in which the model is written.

    Returns:
        The fields of `adapt.vocabulary.vocabulary_results.TrimmedVocabulary`.

    Raises:
        DataError: there is no text.
        ModelError: the tokenizer or the model cannot be trimmed, or would lose a special token.
    """
    quick, used = QuickTokenizer(load_text_tokenizer(start).backend_tokenizer), set[int]()
    while some := list(islice(texts, TOGETHER)):
        used.update(np.unique(np.concatenate(quick(some).lists(IDS))).tolist())
    if not used:
        raise empty_corpus(", ".join(domains))
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    trimmed = trim_tokenizer(tokenizer.backend_tokenizer, used, tokenizer.all_special_ids)
    causal = config.objective.kind == "causal"
    write_trimmed(start, trimmed, causal, folder)
    before, after = (
        load_model(place, causal, start.trust_remote_code).num_parameters() for place in (start.model, folder)
    )
    return {
        "before": len(tokenizer),
        "vocabulary": len(trimmed.kept),
        "used": len(used),
        "parameters_saved": before - after,
        "compute_saved": parameters_and_compute(start.model, folder, config, 0.0)[1],
    }


DIMENSIONS = {
    "tiny": {"layers": 2, "hidden": 128, "heads": 2, "inner": 512},
    "mini": {"layers": 4, "hidden": 256, "heads": 4, "inner": 1024},
    "small": {"layers": 4, "hidden": 512, "heads": 8, "inner": 2048},
    "medium": {"layers": 8, "hidden": 512, "heads": 8, "inner": 2048},
    "base": {"layers": 12, "hidden": 768, "heads": 12, "inner": 3072},
}
"""Dimensions of the BERT models of Turc et al. (arXiv 1908.08962), keyed by name."""


@one_at_a_time
def write_scratch(
    pretrained: Pretrained, texts: Iterable[str], size: int | None, dimensions: str | None, seed: int, folder: Path
) -> tuple[int, int]:
    """Writes a new tokenizer and model. Returns the number of tokens and the number of parameters.

    Args:
        pretrained: the model whose architecture, kind of tokenizer and special tokens are used.
        texts: the documents on which the tokenizer is trained.
        size: maximum number of tokens; None for the number of tokens of `pretrained`.
        dimensions: a name in DIMENSIONS; None for the dimensions of `pretrained`.
        seed: seed of the weights.
        folder: the folder in which model and tokenizer are written.

    Raises:
        ModelError: the dimensions cannot be set, or the model cannot be saved.
    """
    old = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    with quiet():
        new: PreTrainedTokenizerFast = old.train_new_from_iterator(texts, size or len(old), show_progress=False)
    settings = _resized(read_json(pretrained.model / CONFIG), dimensions, pretrained.model)
    settings = {**settings, **_special_ids(settings, old, new), "vocab_size": len(new)}
    write_atomically(folder / CONFIG, json.dumps(settings, indent=2))
    config = load_config(folder, pretrained.trust_remote_code)
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config).from_config(config, dtype=torch.float32)
        save_model(folder, model.state_dict(), new, folder, pretrained.trust_remote_code)
    return len(new), int(model.num_parameters())


def _resized(settings: Mapping[str, Any], dimensions: str | None, folder: Path) -> dict[str, Any]:
    """Returns the settings of config.json with the dimensions of a name in DIMENSIONS; None keeps the old ones."""
    changed = dict(settings)
    for name, value in (DIMENSIONS[dimensions] if dimensions else {}).items():
        named = [key for key in ALIASES[name] if key in settings]
        if not named:
            raise ModelError(
                f"{folder / CONFIG} has none of the fields {', '.join(ALIASES[name])}, so the dimension {name} cannot"
                f" be set to {value}",
                "remove vocabulary.dimensions, to use the dimensions of model.path",
            )
        changed |= dict.fromkeys(named, value)
    if dimensions:
        heads, hidden = DIMENSIONS[dimensions]["heads"], DIMENSIONS[dimensions]["hidden"]
        followers = {"num_key_value_heads": heads, "head_dim": hidden // heads, "embedding_size": hidden}
        changed |= {name: value for name, value in followers.items() if settings.get(name) is not None}
    return changed


def _special_ids(
    settings: Mapping[str, Any], old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast
) -> dict[str, Any]:
    """Returns the settings of config.json that name ids of special tokens, with the new ids."""
    names, ids = {number: token for token, number in old.get_vocab().items()}, new.get_vocab()

    def renewed(number: int) -> int | None:
        return ids.get(names[number]) if number in names else None

    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name.endswith(SPECIAL_ID) and isinstance(value, int):
            found[name] = renewed(value)
        elif name.endswith(SPECIAL_ID) and isinstance(value, list):
            found[name] = [number for each in value if (number := renewed(each)) is not None] or None
    return found

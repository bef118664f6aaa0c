"""Extends a model's vocabulary with words of domains, trims it to some texts, or creates a model with a new vocabulary.

This module imports torch.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from adapt.config import Config, VocabularyConfig
from adapt.model import load, safeguards
from adapt.model.locate import CONFIG, Pretrained, read_json
from adapt.model.size import ALIASES, first_setting
from adapt.model.tokenize import piece_tokenizer, text_tokenizer
from adapt.model.tokenizer import load_config, load_text_tokenizer, load_tokenizer
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError, ModelError
from adapt.terminal.console import log
from adapt.vocabulary import analysis, extension, trimming, vocabulary_results
from adapt.vocabulary.analysis import parameters_and_compute
from adapt.vocabulary.word_reader import CountedWord, WordReader, count_chunks, count_words

SHOWN = 30
"""Maximum number of new tokens that are listed in the record."""
TOGETHER = 256
"""Number of documents that are tokenized at once."""


def extend_model(
    config: Config,
    start: Pretrained,
    donor: Pretrained | None,
    is_listed: bool,
    texts: Callable[[], Iterator[str]],
    domains: Sequence[str],
    general: Iterator[str] | None,
    folder: Path,
) -> tuple[vocabulary_results.Extended, list[dict[str, Any]]]:
    """Chooses words, rebuilds the tokenizer with them, adds rows to the model, and writes it without a model card.

    Args:
        config: the job's configuration.
        start: the original model.
        donor: donor model for `vocabulary.init: omp`, whose vocabulary contains the new words; None for other
            initializations.
        is_listed: whether `vocabulary.candidates` is a file with a list of words.
        texts: function that returns the documents of the domains. It may be called twice.
        domains: names of the domains, for messages.
        general: general text, needed if `vocabulary.candidates` is `divergence`; None otherwise.
        folder: the folder in which the model is written.

    Returns:
        The result, and a list of the new tokens with their ids and the tokens into which they were split before.

    Raises:
        DataError: the domains have no words, no word can become a token, or the file of words cannot be used.
        ModelError: the tokenizer or the model cannot be extended.
    """
    reader = WordReader(load_text_tokenizer(start).backend_tokenizer)
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    words, asked = _words(reader, texts(), domains), config.vocabulary
    if is_listed:
        found = analysis.from_file(Path(asked.candidates), words, reader, tokenizer.all_special_tokens)
    else:
        found = _candidates(asked, words, reader, tokenizer, texts, general)
    number = len(found) if is_listed else extension.tokens_to_add(asked.size, found, len(tokenizer))
    if number > len(found):
        log(f"{number:,} new tokens are configured (vocabulary.size), but only {len(found):,} words can become tokens")
    reached = extension.build_reached(
        tokenizer.backend_tokenizer, found[:number], [*words, *(found if is_listed else [])]
    )
    share = asked.module_share if asked.module else None
    causal = config.objective.kind == "causal"
    rows = extension.write_extended(start, reached.rebuilt, asked.init, config.seed, causal, folder, donor, share)
    count, before = sum(word.count for word in words), sum(word.count * len(word.pieces) for word in words)
    after = extension.pieces_in(words, WordReader(reached.rebuilt.backend))
    parameters, compute = parameters_and_compute(start.model, folder, config, 1 - after / before)
    extended = vocabulary_results.Extended(
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
    return extended, list(_described(reached, tokenizer, reader))


def _candidates(
    asked: VocabularyConfig,
    words: Sequence[CountedWord],
    reader: WordReader,
    tokenizer: PreTrainedTokenizerFast,
    texts: Callable[[], Iterator[str]],
    general: Iterator[str] | None,
) -> list[CountedWord]:
    """Returns the words of the text that may become tokens, the best first."""
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
        raise vocabulary_results.empty_corpus(", ".join(domains))
    return words


def _described(
    reached: extension.Reached, tokenizer: PreTrainedTokenizerFast, reader: WordReader
) -> Iterator[dict[str, Any]]:
    """Yields a description of each new token: id, old pieces and, if the token is a word, number of occurrences."""
    words = {word.word: word for word in reached.chosen}
    for token, number in reached.rebuilt.added.items():
        word = words.get(token)
        known = {"word": word.surface, "count": word.count} if word else {}
        ids = list(reader.parts(token))
        yield {"token": token, "id": number, **known, "ids": ids, "pieces": tokenizer.convert_ids_to_tokens(ids)}


def trim_model(
    config: Config, start: Pretrained, texts: Iterator[str], domains: Sequence[str], folder: Path
) -> vocabulary_results.TrimmedVocabulary:
    """Writes a model without the tokens that some texts never use.

    Args:
        config: the job's configuration.
        start: the original model.
        texts: documents. Every token that occurs in them remains.
        domains: names of the domains, for messages.
        folder: the folder in which the model is written.

    Raises:
        DataError: there is no text.
        ModelError: the tokenizer or the model cannot be trimmed, or would lose a special token.
    """
    quick, used = text_tokenizer.QuickTokenizer(load_text_tokenizer(start).backend_tokenizer), set[int]()
    while some := list(islice(texts, TOGETHER)):
        used.update(np.unique(np.concatenate(quick(some).lists(piece_tokenizer.IDS))).tolist())
    if not used:
        raise vocabulary_results.empty_corpus(", ".join(domains))
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    trimmed = trimming.trim_tokenizer(tokenizer.backend_tokenizer, used, tokenizer.all_special_ids)
    removed = extension.write_trimmed(start, trimmed, config.objective.kind == "causal", folder)
    compute = parameters_and_compute(start.model, folder, config, 0.0)[1]
    return vocabulary_results.TrimmedVocabulary(len(tokenizer), len(trimmed.kept), len(used), removed, compute)


DIMENSIONS = {
    "tiny": {"layers": 2, "hidden": 128, "heads": 2, "inner": 512},
    "mini": {"layers": 4, "hidden": 256, "heads": 4, "inner": 1024},
    "small": {"layers": 4, "hidden": 512, "heads": 8, "inner": 2048},
    "medium": {"layers": 8, "hidden": 512, "heads": 8, "inner": 2048},
    "base": {"layers": 12, "hidden": 768, "heads": 12, "inner": 3072},
}
"""Dimensions of the BERT models of Turc et al. (arXiv 1908.08962), keyed by name."""


@safeguards.one_at_a_time
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
    with safeguards.quiet():
        new: PreTrainedTokenizerFast = old.train_new_from_iterator(texts, size or len(old), show_progress=False)
    settings = _resized(read_json(pretrained.model / CONFIG), dimensions, pretrained.model)
    words = new.get_vocab()
    ids = {number: words[token] for token, number in old.get_vocab().items() if token in words}
    settings = {**settings, **trimming.renumbered(settings, ids), "vocab_size": len(new)}
    write_atomically(folder / CONFIG, json.dumps(settings, indent=2))
    config = load_config(folder, pretrained.trust_remote_code)
    with safeguards.quiet(), torch.random.fork_rng():
        torch.manual_seed(seed)
        model = load.model_class(config).from_config(config, dtype=torch.float32)
        load.save_model(folder, model.state_dict(), new, folder, pretrained.trust_remote_code)
    return len(new), int(model.num_parameters())


def _resized(settings: Mapping[str, Any], dimensions: str | None, folder: Path) -> dict[str, Any]:
    """Returns the settings of config.json with the dimensions of a name in DIMENSIONS; None keeps the old ones.

    Lists with one entry per layer, such as `layer_types`, are cut, or their entries are repeated in order.
    """
    changed = dict(settings)
    old = first_setting(changed, ALIASES["layers"])  # number of layers
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
        layers = DIMENSIONS[dimensions]["layers"]
        for name, value in settings.items():
            if "layer" in name and isinstance(value, list) and len(value) == old:
                changed[name] = [value[number % old] for number in range(layers)]
    return changed

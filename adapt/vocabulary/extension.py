"""Adds tokens to a model and its tokenizer, and writes both with a model card. Also writes trimmed models."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from adapt.config.job_sections import tokens_wanted
from adapt.model.additions.exbert import add_exbert
from adapt.model.additions.table import KEY, additions_of, stored_additions
from adapt.model.load import load_model
from adapt.model.locate import CONFIG, Pretrained, read_json
from adapt.model.model_card import card_code, card_text, front_matter, loading_code, settings
from adapt.model.safeguards import one_at_a_time
from adapt.model.save_model import save_model
from adapt.model.tokenizer import load_config, load_tokenizer, read_tokenizer
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError, ModelError
from adapt.vocabulary.analysis import elbow
from adapt.vocabulary.candidates import pieces_of
from adapt.vocabulary.embedding_rows import add_rows, embedding_rows, transplant_rows
from adapt.vocabulary.rebuild import Rebuilt, rebuild
from adapt.vocabulary.trimming import Trimmed, keep_rows, with_new_ids
from adapt.vocabulary.vocabulary_results import Extended
from adapt.vocabulary.word_reader import CountedWord, WordReader

CHECKED = 1000
"""Number of tokens that are checked after a tokenizer was written. The tokens with the highest ids are checked."""
ROUNDS = 3
"""Largest number of times that the tokenizer is built. Each time, tokens that no word used are left out."""


def tokens_to_add(size: int | str | None, candidates: Sequence[CountedWord], vocabulary: int) -> int:
    """Returns the number of candidates that should become tokens. There may be fewer candidates.

    Args:
        size: `vocabulary.size`.
        candidates: the candidates, the best first.
        vocabulary: number of tokens of the tokenizer.
    """
    if size == "elbow":
        return elbow([word.saved for word in candidates])
    assert not isinstance(size, str)
    return tokens_wanted(size, vocabulary)


@dataclass(frozen=True)
class Reached:
    """A tokenizer whose new tokens occur in words of the corpus or are intermediate results of merges."""

    rebuilt: Rebuilt
    chosen: list[CountedWord]
    """The candidates that became tokens."""
    unreached: list[CountedWord]
    """The candidates that no word contains after tokenization."""


def build_reached(backend: Tokenizer, chosen: Sequence[CountedWord], words: Sequence[CountedWord]) -> Reached:
    """Builds a tokenizer with some candidates, and rebuilds it without those that no tokenized word contains.

    Args:
        backend: the tokenizer.
        chosen: the candidates.
        words: the words that are tokenized to see which new tokens are used.

    Raises:
        DataError: no candidate is used.
        ModelError: see `adapt.vocabulary.rebuild.rebuild`.
    """
    names = {number: token for token, number in backend.get_vocab().items()}
    left = list(chosen)
    for _ in range(ROUNDS):
        rebuilt = rebuild(backend, pieces_of(left, names))
        reader = WordReader(rebuilt.backend)
        asked = {word.word for word in left}
        seen = {piece for word in words for piece in reader.pieces(word.word)}
        reached = [word for word in left if rebuilt.added.get(word.word) in seen]
        if len(reached) == len(left):
            return Reached(rebuilt, left, [word for word in chosen if word.word not in asked])
        left = reached
        if not left:
            break
    raise DataError("no candidate can become a token that the tokenizer uses", "choose another way, or a larger corpus")


@one_at_a_time
def write_extended(
    pretrained: Pretrained,
    rebuilt: Rebuilt,
    init: str,
    seed: int,
    causal: bool,
    folder: Path,
    donor: Pretrained | None = None,
    module_share: float | None = None,
) -> int:
    """Writes the model and the tokenizer with the new tokens, and returns the number of embedding rows.

    Args:
        pretrained: the original model.
        rebuilt: the tokenizer with the new tokens.
        init: the initialization of new rows, a name in `adapt.vocabulary.embedding_rows.INITS`.
        seed: seed of random rows.
        causal: whether the model predicts next tokens.
        folder: the folder in which model and tokenizer are written.
        donor: for `omp`, the model that knows the new tokens.
        module_share: size of an exBERT module as a share of the model's heads and neurons
            (`adapt.model.additions.exbert.add_exbert`); None for no module.

    Raises:
        ModelError: the model or the written tokenizer cannot be loaded, or the model cannot have a module.
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    old = tokenizer.get_vocab()
    reader = WordReader(tokenizer.backend_tokenizer)
    model = load_model(pretrained.model, causal, pretrained.trust_remote_code)
    pieces = {number: reader.parts(token) for token, number in rebuilt.added.items()}
    add_rows(model, pieces, max(old.values()) + 1, init, seed)
    if donor:
        surfaces = [WordReader(rebuilt.backend).surface(token) for token in rebuilt.added]
        transplant_rows(model, reader, list(pieces), surfaces, donor)
    if module_share is not None:
        add_exbert(model, module_share, max(old.values()) + 1, seed)
    rows = embedding_rows(model)
    settings = {**read_json(pretrained.model / CONFIG), "vocab_size": rows}
    if entries := additions_of(model.config):
        settings[KEY] = entries
    write_atomically(folder / CONFIG, json.dumps(settings, indent=2))
    save_tokenizer(tokenizer, rebuilt.backend, folder, pretrained.trust_remote_code)
    save_model(folder, model.state_dict(), load_tokenizer(folder), folder, pretrained.trust_remote_code)
    return rows


def save_tokenizer(
    tokenizer: PreTrainedTokenizerFast, backend: Tokenizer, folder: Path, trust_remote_code: bool
) -> None:
    """Writes a tokenizer with changed tokens, reads it back, and checks that it is the same.

    Args:
        tokenizer: the original tokenizer.
        backend: the changed tokenizer.
        folder: the folder in which it is written, which already has config.json.
        trust_remote_code: whether code that comes with the checkpoint may run.

    Raises:
        ModelError: the tokenizer that was read back differs.
    """
    tokenizer.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    found = read_tokenizer(folder, load_config(folder, trust_remote_code), trust_remote_code)
    newest = sorted(backend.get_vocab().items(), key=lambda item: -item[1])[:CHECKED]
    before, after = WordReader(backend), WordReader(found.backend_tokenizer)
    is_same = all(before.pieces(token) == after.pieces(token) for token, _ in newest)
    if found.get_vocab() != backend.get_vocab() or not is_same:
        raise ModelError(
            f"a tokenizer of class {type(tokenizer).__name__} loses its new tokens when it is written and read",
            "choose a model with a plain tokenizer.json",
        )


def pieces_in(words: Iterable[CountedWord], reader: WordReader) -> int:
    """Returns the number of pieces of all words of a corpus with a tokenizer."""
    return sum(word.count * len(reader.pieces(word.word)) for word in words)


@one_at_a_time
def write_trimmed(pretrained: Pretrained, trimmed: Trimmed, causal: bool, folder: Path) -> None:
    """Writes the model and the tokenizer without the dropped tokens. For the arguments see `write_extended`.

    Raises:
        ModelError: config.json names a special token that would be dropped, or the model cannot be loaded.
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    settings = with_new_ids(read_json(pretrained.model / CONFIG), trimmed)
    write_atomically(folder / CONFIG, json.dumps(settings, indent=2))
    model = load_model(pretrained.model, causal, pretrained.trust_remote_code)
    keep_rows(model, trimmed.kept)
    save_tokenizer(tokenizer, trimmed.backend, folder, pretrained.trust_remote_code)
    save_model(folder, model.state_dict(), load_tokenizer(folder), folder, pretrained.trust_remote_code)


CARD = """\
---
{front}
---

# {name}

{base_model} with {words:,} words of a domain as tokens. It has not been trained since.

## What was changed

{facts}

The tokenizer was rebuilt: old ids are unchanged, texts without a new token have the same tokens as before,
and the new ids come after the old ones. `words.json` lists the new tokens.

The first new tokens: {first}.

## How to load it

{loading}
"""


def write_extension_card(folder: Path, name: str, base_model: str, extended: Extended, causal: bool) -> None:
    """Writes the model card of an extended model.

    Args:
        folder: folder of the extended model.
        name: name of the job.
        base_model: the original model, as named in the configuration.
        extended: the result of the extension.
        causal: whether the model predicts next tokens.
    """
    additions = [entry["kind"] for entry in stored_additions(folder)]
    facts = {
        "new tokens": extended.words + extended.steps,
        "tokens": extended.vocabulary,
        "rows of the embeddings": extended.rows,
        "tokens per word of the corpus, before": round(extended.fertility_before, 3),
        "tokens per word of the corpus, now": round(extended.fertility_after, 3),
        "initialization of new rows": extended.init,
        **({"additions to the architecture": ", ".join(additions)} if additions else {}),
    }
    card = CARD.format(
        front=front_matter(base_model, "text-generation" if causal else "fill-mask"),
        loading=loading_code(causal, additions),
        name=card_text(name),
        base_model=card_code(base_model),
        words=extended.words,
        facts=settings(facts),
        first=", ".join(map(card_text, extended.first)),
    )
    write_atomically(folder / "README.md", card)

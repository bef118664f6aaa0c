"""Stages `extend` and `taught`: a model and a tokenizer with words of a domain as tokens.

`taught` trains the rows of the new tokens before all else is trained, by `distill` or `warmup`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.config.vocabulary import tokens_wanted
from adapt.model.size import ModelSize
from adapt.model.start import Start
from adapt.ray.runtime import connect, hide_unreserved_gpus
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.files import link_or_copy, write_atomically
from adapt.runner.record import OneModel, Record, load_record, read_result
from adapt.show.blocks import Block, TextBlock
from adapt.stage.context import Tokens
from adapt.stage.preflight import check_weights
from adapt.stage.text_sources import Files
from adapt.stage.vocabulary_analysis import GENERAL, Screening, empty_corpus
from adapt.support.better import Less
from adapt.support.errors import DataError
from adapt.support.redact import redact
from adapt.terminal.console import log
from adapt.train.capacity.device import task_needs
from adapt.vocabulary.vocabulary_results import Extended

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from adapt.vocabulary.extension import Reached
    from adapt.vocabulary.word_reader import CountedWord, WordReader


WORDS_FILE = "words.json"
WAYS = ("saved", "divergence", "trained")
"""Values of `vocabulary.candidates` that are no file."""
SHOWN = 30
"""New tokens that the record names."""


@dataclass(frozen=True, eq=False)
class ExtendVocabulary(Stage[Extended]):
    """A model that has words of a corpus as tokens."""

    kind = "extend"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """The model."""
    tokens: Tokens
    domains: Mapping[str, Files]
    """The text whose words become tokens."""
    general: Files | None
    """General text, where `divergence` compares with it."""
    listed: str | None
    """The digest of a file of words; None where it is none."""
    screening: Screening
    """What the domains leave out; general text is read whole."""
    donor: Start | None = None
    """The model that knows the words, of `omp`."""

    def what(self) -> Mapping[str, Any]:
        """The model, what is read and how much, which words are chosen and how many, and what the model begins with."""
        asked, general = self.config.vocabulary, self.general
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "domains": {name: files.what() for name, files in self.domains.items()},
            "general": general.reading if general else None,
            "candidates": self.listed or asked.candidates,
            "size": asked.size,
            "init": asked.init,
            **({"donor": self.donor.digest} if self.donor else {}),
            **({"module": asked.module, "module_share": asked.module_share} if asked.module else {}),
            "min_count": asked.min_count,
            "max_megabytes": asked.max_megabytes,
            "seed": self.config.seed,
            **self.screening.what(self.domains),
        }

    def size_ahead(self, size: ModelSize) -> ModelSize:
        """The dimensions of the model with its new tokens, and its module. Of an elbow nobody knows how many there are.

        Args:
            size: of the model before.
        """
        asked = self.config.vocabulary
        tokens = 0 if asked.size == "elbow" or self.listed else tokens_wanted(asked.size, size.vocabulary)
        larger = size.with_tokens(tokens)
        return larger.with_layers_beside(asked.module_share) if asked.module else larger

    def run(self, folder: Path, done: Done) -> Outcome[Extended]:
        """Chooses words, builds the tokenizer anew, and gives the model rows.

        Raises:
            DataError: the corpus has no words, or none that could become tokens; or the file of words cannot be used.
            ModelError: the tokenizer or the model cannot be extended.
        """
        from adapt.model.tokenizer import load_text_tokenizer, load_tokenizer
        from adapt.vocabulary.analysis import parameters_and_compute
        from adapt.vocabulary.extension import build_reached, pieces_in, wanted, write_extended, write_extension_card
        from adapt.vocabulary.word_reader import WordReader

        config, start = self.config, self.start.made(done)
        check_weights(start.model)
        reader = WordReader(load_text_tokenizer(start).backend_tokenizer)
        tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
        words = _words(reader, self._texts(done), self.domains)
        candidates = self._candidates(words, reader, tokenizer, done)
        number = len(candidates) if self.listed else wanted(config.vocabulary.size, candidates, len(tokenizer))
        if number > len(candidates):
            log(f"{number:,} words were to become tokens, and {len(candidates):,} can")
        reached = build_reached(
            tokenizer.backend_tokenizer, candidates[:number], [*words, *(candidates if self.listed else [])]
        )
        causal, donor = config.objective.kind == "causal", self.donor.made(done) if self.donor else None
        asked = config.vocabulary
        share = asked.module_share if asked.module else None
        rows = write_extended(start, reached.rebuilt, asked.init, config.seed, causal, folder, donor, share)
        count, before = sum(word.count for word in words), sum(word.count * len(word.pieces) for word in words)
        after = pieces_in(words, WordReader(reached.rebuilt.backend))
        parameters, compute = parameters_and_compute(start.model, folder, config, 1 - after / before)
        extended = Extended(
            words=len(reached.chosen) - len(reached.rebuilt.left_out),
            steps=len(reached.rebuilt.steps),
            vocabulary=len(tokenizer) + len(reached.rebuilt.added),
            rows=rows,
            candidates=len(candidates),
            left_out=len(reached.rebuilt.left_out) + len(reached.unreached),
            fertility_before=before / count,
            fertility_after=after / count,
            length_saved=1 - after / before,
            init=config.vocabulary.init,
            first=[word.surface for word in reached.chosen[:SHOWN]],
            parameters_added=parameters,
            compute_saved=compute,
        )
        described = list(_described(reached, tokenizer, reader))
        write_atomically(folder / WORDS_FILE, json.dumps(described, ensure_ascii=False))
        base = config.model.path if self.start.training is None else str(start.model)
        write_extension_card(folder, self.name, redact(base), extended, causal)
        return Outcome(extended)

    def _candidates(
        self, words: "Sequence[CountedWord]", reader: "WordReader", tokenizer: "PreTrainedTokenizerFast", done: Done
    ) -> "list[CountedWord]":
        """What may become tokens, the best first."""
        from adapt.vocabulary import candidates
        from adapt.vocabulary.corpus_texts import corpus_texts

        asked = self.config.vocabulary
        if self.listed:
            return candidates.from_file(Path(asked.candidates), words, reader, tokenizer.all_special_tokens)
        if asked.candidates == "divergence":
            assert self.general
            texts = corpus_texts(self.general.manifest, self.general.corpus, asked.max_megabytes, self.config.seed)
            general = _words(reader, texts, [GENERAL])
            found = candidates.by_divergence(words, general, reader, asked.min_count)
        elif asked.candidates == "trained":
            trained = tokenizer.train_new_from_iterator(self._texts(done), len(tokenizer), show_progress=False)
            found = candidates.by_training(words, trained.backend_tokenizer, reader, asked.min_count)
        else:
            found = candidates.by_saved(words, reader, asked.min_count)
        if not found:
            raise DataError(
                f"no word that comes {asked.min_count} times would save pieces as a token",
                "lower vocabulary.min_count, or take a larger corpus; it may be that the model knows these words",
            )
        return found

    def _texts(self, done: Done) -> Iterator[str]:
        """The documents of all domains."""
        megabytes = self.config.vocabulary.max_megabytes / len(self.domains)
        return chain.from_iterable(self.screening.texts(self.domains, megabytes, self.config.seed, done).values())


def _words(reader: "WordReader", texts: Iterable[str], domains: Iterable[str]) -> "list[CountedWord]":
    """The words of some texts, which are of these domains."""
    from adapt.vocabulary.word_reader import count_chunks, count_words

    words = count_words(count_chunks(texts)[0], reader)
    if not words:
        raise empty_corpus(", ".join(domains))
    return words


def _described(
    reached: "Reached", tokenizer: "PreTrainedTokenizerFast", reader: "WordReader"
) -> Iterator[dict[str, Any]]:
    """Each new token with its id and its old pieces, and for words how often they come."""
    words = {word.word: word for word in reached.chosen}
    for token, number in reached.rebuilt.added.items():
        word = words.get(token)
        known = {"word": word.surface, "count": word.count} if word else {}
        ids = list(reader.parts(token))
        yield {"token": token, "id": number, **known, "ids": ids, "pieces": tokenizer.convert_ids_to_tokens(ids)}


SETTINGS = ("snippets", "learning_rate", "max_megabytes", "warmup_steps")


@dataclass(frozen=True)
class Taught(OneModel):
    """What new rows learnt. Model and tokenizer are in the stage's folder."""

    tokens: int
    """New tokens."""
    steps: int
    before: float
    """`distill`: mean squared difference of hidden states, on snippets that were not learnt from. `warmup`: mean loss
    of the first tenth of the steps [nats a predicted token]."""
    after: Less[float]
    """The same afterwards; of a warm-up, of the last tenth."""

    def blocks(self, record: Record) -> list[Block]:
        """What the rows of new tokens learnt, and where the model is."""
        measure = "error of hidden states" if record.what["way"] == "distill" else "loss"
        extended = load_record(Path(record.inputs["extended"]["path"]))
        before = read_result(Extended, extended).blocks(extended)[:-1] if extended else []  # without its model
        learnt = (
            f"the rows of {self.tokens:,} new tokens were trained for {self.steps:,} steps: "
            f"{measure} {self.before:.4g} before, {self.after:.4g} after"
        )
        return [*before, TextBlock(learnt), TextBlock(f"model and tokenizer: {record.path}")]


@dataclass(frozen=True, eq=False)
class TeachRows(Stage[Taught]):
    """The rows of new tokens, taught by the model before them, or by the objective."""

    kind = "taught"

    name: str
    config: Config
    way: str
    """`distill` or `warmup`."""
    start: Start
    """The model before its vocabulary was extended."""
    extended: ExtendVocabulary
    beginning: Stage[Any]
    """The stage whose model is taught: `extended`, or what taught it before."""
    domains: Mapping[str, Files]
    screening: Screening
    """What the domains leave out; the key of `extended` holds it."""

    def what(self) -> Mapping[str, Any]:
        """The way, its settings, objective and seed."""
        asked, config = self.config.vocabulary, self.config
        return {
            "way": self.way,
            **{name: getattr(asked, name) for name in SETTINGS},
            "objective": [config.objective.kind, config.objective.mask_fraction],
            "sequence_length": config.training.sequence_length,
            "seed": config.seed,
        }

    def needs(self) -> Mapping[str, float]:
        """It computes on one device."""
        return task_needs(self.config.resources)

    def run(self, folder: Path, done: Done) -> Outcome[Taught]:
        """Learns on a device of the cluster.

        Raises:
            ModelError: the model cannot be loaded.
        """
        from adapt.evaluate.measure_model import call_on_device

        connect(self.config.resources)
        found = call_on_device(_teach, self.config.resources, self, done, folder)
        words = done[self.extended].path / WORDS_FILE
        link_or_copy(words, folder / WORDS_FILE)
        return Outcome(found)


def _teach(stage: TeachRows, done: Done, folder: Path) -> Taught:
    """In a Ray task."""
    hide_unreserved_gpus()
    return teach(stage, done, folder)


def teach(stage: TeachRows, done: Done, folder: Path) -> Taught:
    """What the stage does, in this process."""
    from adapt.vocabulary.teaching import distil_rows, warm_rows

    path = done[stage.beginning].path
    teacher = stage.start.made(done)
    extended = replace(teacher, model=path, tokenizer=path)
    megabytes = stage.config.vocabulary.max_megabytes / len(stage.domains)
    texts = chain.from_iterable(stage.screening.texts(stage.domains, megabytes, stage.config.seed, done).values())
    words = json.loads((done[stage.extended].path / WORDS_FILE).read_text(encoding="utf-8"))
    pieces = {int(word["id"]): word["ids"] for word in words}
    if stage.way == "distill":
        error = distil_rows(teacher, extended, pieces, texts, stage.config, folder)
        return Taught(len(pieces), error.steps, error.before, error.after)
    warmed = warm_rows(extended, list(pieces), texts, stage.config, folder)
    return Taught(len(pieces), warmed.steps, warmed.first, warmed.last)

"""Defines the stages that analyze or change a model's vocabulary.

- `vocabulary` measures how a tokenizer splits the words of domains, and how many tokens new words would save.
- `extend` adds words of a domain as tokens to a model and its tokenizer.
- `taught` trains the embedding rows of the new tokens before the whole model is trained, by `distill` or `warmup`.
- `trim` removes the tokens that a domain never uses.
- `scratch` trains a tokenizer on a domain, and makes a model with random weights.

Stages that choose words or train new rows exclude the same documents as the later training (`Screening`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.config.job_sections import tokens_wanted
from adapt.evaluate.measure_model import call_on_device
from adapt.model.additions.table import refuse_additions
from adapt.model.size import ModelSize
from adapt.model.start import Start
from adapt.ray.runtime import connect, hide_unreserved_gpus
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.files import link_or_copy, write_atomically
from adapt.runner.record import OneModel, Record, load_record, read_result
from adapt.show.blocks import Block, TextBlock, summary
from adapt.stage.context import Tokens
from adapt.stage.preflight import check_weights
from adapt.stage.prepare_text import duplicates_of
from adapt.stage.text_sources import Dedup, Files
from adapt.support.better import Less
from adapt.support.errors import ConfigError
from adapt.support.paths import user_path
from adapt.support.redact import redact
from adapt.train.capacity.device import task_needs
from adapt.vocabulary.vocabulary_results import Analyzed, Extended, TrimmedVocabulary, draw_curves, empty_corpus
from adapt.vocabulary.word_reader import corpus_texts, measured_in


@dataclass(frozen=True)
class Screening:
    """Rules for excluding documents of the domains.

    Held-out text and the texts of `corpus.decontaminate` are always excluded, in addition to these rules.
    """

    measured: Files | None = None
    """General text on which models are measured. Its documents are not used to choose words or to train rows."""
    dedup: Dedup | None = None
    """Stage that lists duplicates. None if `corpus.deduplicate` is not set."""

    def what(self, domains: Mapping[str, Files]) -> dict[str, Any]:
        """Returns the entries of a stage's key that identify these rules. The result is empty if no rule applies.

        The entry `screened` distinguishes new results from results of earlier versions, which did not exclude
        evaluation sets although their keys contain the digests of these sets.
        """
        return {
            **({"screened": True} if any(files.corpus.decontaminate for files in domains.values()) else {}),
            **({"measured": self.measured.what()} if self.measured else {}),
        }

    def texts(self, domains: Mapping[str, Files], megabytes: float, seed: int, done: Done) -> dict[str, Iterator[str]]:
        """Returns an iterator per domain over its documents. Documents are read when they are requested.

        Args:
            domains: files of the domains, in the order of the sources of `dedup`.
            megabytes: approximate amount of text to read per domain [MB].
            seed: seed of the order in which parts of a domain are read.
            done: the finished stages.

        Raises:
            DataError: a file is broken, or too many records are broken.
        """
        measured = measured_in(self.measured.manifest, self.measured.corpus) if self.measured else None
        return {
            name: corpus_texts(
                files.manifest, files.corpus, megabytes, seed, measured, duplicates_of(self.dedup, place, done)
            )
            for place, (name, files) in enumerate(domains.items())
        }

    def joined(self, domains: Mapping[str, Files], config: Config, done: Done) -> Iterator[str]:
        """Returns documents of all domains, one domain after another, together up to `vocabulary.max_megabytes`."""
        megabytes = config.vocabulary.max_megabytes / len(domains)
        return chain.from_iterable(self.texts(domains, megabytes, config.seed, done).values())


def whole_text(files: Files, config: Config) -> Iterator[str]:
    """Returns documents of files, up to `vocabulary.max_megabytes` of text. No rules for excluding documents apply."""
    return corpus_texts(files.manifest, files.corpus, config.vocabulary.max_megabytes, config.seed)


GENERAL = "(general)"
"""Name of general text among the domains."""


@dataclass(frozen=True, eq=False)
class AnalyzeVocabulary(Stage[Analyzed]):
    """Counts the words of each domain, and analyses how a tokenizer splits them."""

    kind = "vocabulary"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model whose tokenizer and dimensions are used."""
    tokens: Tokens
    domains: Mapping[str, Files]
    """Files of each domain, keyed by domain. General text comes first, if there is any."""
    screening: Screening
    """Rules for excluding documents of the domains. General text is read completely."""

    def what(self) -> Mapping[str, Any]:
        """Returns the model, the tokenizer and the text that is read.

        The objective and the sequence length are included, because they determine the estimated compute.
        """
        config = self.config
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "domains": {name: files.what() for name, files in self.domains.items()},
            "min_count": config.vocabulary.min_count,
            "max_megabytes": config.vocabulary.max_megabytes,
            "objective": [config.objective.kind, config.objective.mask_fraction],
            "sequence_length": config.training.sequence_length,
            **self.screening.what(self.domains),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Analyzed]:
        """Counts the words in this process, and draws the curves.

        Raises:
            DataError: a domain has no words.
        """
        from adapt.vocabulary.analysis import analyze_domains

        tokens, found = analyze_domains(self.config, self.start.made(done), self._texts(done), GENERAL)
        draw_curves(found, folder / "vocabulary.png")
        return Outcome(Analyzed(tokens, found))

    def _texts(self, done: Done) -> dict[str, Iterator[str]]:
        domains = {name: files for name, files in self.domains.items() if name != GENERAL}
        texts = self.screening.texts(domains, self.config.vocabulary.max_megabytes, self.config.seed, done)
        general = self.domains.get(GENERAL)
        return {**({GENERAL: whole_text(general, self.config)} if general else {}), **texts}


WORDS_FILE = "words.json"
WAYS = ("saved", "divergence", "trained")
"""Values of `vocabulary.candidates` that are not the path of a file."""


@dataclass(frozen=True, eq=False)
class ExtendVocabulary(Stage[Extended]):
    """Adds words of a corpus as tokens to a model and its tokenizer."""

    kind = "extend"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model to extend."""
    tokens: Tokens
    domains: Mapping[str, Files]
    """Text whose words become tokens, keyed by domain."""
    general: Files | None
    """General text that `candidates: divergence` compares with the domains. None for other candidates."""
    listed: str | None
    """Digest of the file that lists the words. None if the words do not come from a file."""
    screening: Screening
    """Rules for excluding documents of the domains. General text is read completely."""
    donor: Start | None = None
    """Model whose vocabulary contains the words, for `init: omp`. None for other values of `init`."""

    def what(self) -> Mapping[str, Any]:
        settings, general = self.config.vocabulary, self.general
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "domains": {name: files.what() for name, files in self.domains.items()},
            "general": general.reading if general else None,
            "candidates": self.listed or settings.candidates,
            "size": settings.size,
            "init": settings.init,
            **({"donor": self.donor.digest} if self.donor else {}),
            **({"module": settings.module, "module_share": settings.module_share} if settings.module else {}),
            "min_count": settings.min_count,
            "max_megabytes": settings.max_megabytes,
            "seed": self.config.seed,
            **self.screening.what(self.domains),
        }

    def size_ahead(self, size: ModelSize) -> ModelSize:
        """Returns the dimensions of the model with its new tokens and its exBERT module, if any.

        The number of new tokens is not known in advance for `elbow` and for a file of words. It then counts as 0.
        """
        settings = self.config.vocabulary
        tokens = 0 if settings.size == "elbow" or self.listed else tokens_wanted(settings.size, size.vocabulary)
        larger = size.with_tokens(tokens)
        return larger.with_layers_beside(settings.module_share) if settings.module else larger

    def run(self, folder: Path, done: Done) -> Outcome[Extended]:
        """Chooses words, rebuilds the tokenizer, and adds rows to the model.

        Raises:
            DataError: the corpus has no words that could become tokens, or the file of words cannot be used.
            ModelError: the tokenizer or the model cannot be extended.
        """
        from adapt.vocabulary import extension, model_changes

        config, start = self.config, self.start.made(done)
        check_weights(start.model)
        donor = self.donor.made(done) if self.donor else None
        general = whole_text(self.general, config) if self.general else None

        def texts() -> Iterator[str]:
            return self.screening.joined(self.domains, config, done)

        is_listed = self.listed is not None
        extended, words = model_changes.extend_model(
            config, start, donor, is_listed, texts, list(self.domains), general, folder
        )
        base = redact(config.model.path if self.start.training is None else str(start.model))
        extension.write_extension_card(folder, self.name, base, extended, config.objective.kind == "causal")
        write_atomically(folder / WORDS_FILE, json.dumps(words, ensure_ascii=False))
        return Outcome(extended)


SETTINGS = ("snippets", "learning_rate", "max_megabytes", "warmup_steps")


@dataclass(frozen=True)
class Taught(OneModel):
    """Result of training the new rows. Model and tokenizer are in the stage's folder."""

    tokens: int
    """Number of new tokens."""
    steps: int
    before: float
    """Error before training. For `distill`, the mean squared difference of hidden states, on snippets that were not
    trained on. For `warmup`, the mean loss of the first tenth of the steps [nats per predicted token]."""
    after: Less[float]
    """Error after training. For `distill`, the mean squared difference of hidden states. For `warmup`, the mean loss
    of the last tenth of the steps [nats per predicted token]."""

    def blocks(self, record: Record) -> list[Block]:
        is_distilled = record.what["way"] == "distill"
        measure = "mean squared error of hidden states" if is_distilled else "mean training loss [nats per token]"
        extended = load_record(Path(record.inputs["extended"]["path"]))
        # without the last block, which names another model's folder
        before = read_result(Extended, extended).blocks(extended)[:-1] if extended else []
        learnt = (
            f"Embeddings of {self.tokens:,} new tokens were trained for {self.steps:,} steps: "
            f"{measure} {self.before:.4g} before and {self.after:.4g} after."
        )
        return [*before, TextBlock(learnt), TextBlock(f"Model and tokenizer: {record.path}")]


@dataclass(frozen=True, eq=False)
class TeachRows(Stage[Taught]):
    """Trains the embedding rows of new tokens.

    `distill` uses the model before the extension as teacher, and `warmup` trains with the job's objective.
    """

    kind = "taught"

    name: str
    config: Config
    way: str
    """Kind of training: `distill` or `warmup`."""
    start: Start
    """Model before its vocabulary was extended."""
    extended: ExtendVocabulary
    beginning: Stage[Any]
    """Stage whose model is trained: `extended`, or an earlier stage that trained the new rows."""
    domains: Mapping[str, Files]
    screening: Screening
    """Rules for excluding documents of the domains. This stage's key omits the rules, because the key of `extended`
    contains them."""

    def what(self) -> Mapping[str, Any]:
        settings, config = self.config.vocabulary, self.config
        return {
            "way": self.way,
            **{name: getattr(settings, name) for name in SETTINGS},
            "objective": [config.objective.kind, config.objective.mask_fraction],
            "sequence_length": config.training.sequence_length,
            "seed": config.seed,
        }

    def needs(self) -> Mapping[str, float]:
        return task_needs(self.config.resources)

    def run(self, folder: Path, done: Done) -> Outcome[Taught]:
        """Trains the rows on a device of the cluster.

        Raises:
            ModelError: the model cannot be loaded.
        """
        connect(self.config.resources)
        found = call_on_device(_teach, self.config.resources, folder, self, done, folder, batch_field=None)
        words = done[self.extended].path / WORDS_FILE
        link_or_copy(words, folder / WORDS_FILE)
        return Outcome(found)


def _teach(stage: TeachRows, done: Done, folder: Path) -> Taught:
    """Trains the rows of new tokens inside a Ray task."""
    hide_unreserved_gpus()
    return teach(stage, done, folder)


def teach(stage: TeachRows, done: Done, folder: Path) -> Taught:
    """Trains the rows of new tokens in this process, and returns the stage's result."""
    from adapt.vocabulary.new_rows import distil_rows, warm_rows

    path = done[stage.beginning].path
    teacher = stage.start.made(done)
    extended = replace(teacher, model=path, tokenizer=path)
    texts = stage.screening.joined(stage.domains, stage.config, done)
    words = json.loads((done[stage.extended].path / WORDS_FILE).read_text(encoding="utf-8"))
    pieces = {int(word["id"]): word["ids"] for word in words}
    if stage.way == "distill":
        found = distil_rows(teacher, extended, pieces, texts, stage.config, folder)
    else:
        found = warm_rows(extended, list(pieces), texts, stage.config, folder)
    return Taught(len(pieces), *found)


@dataclass(frozen=True, eq=False)
class TrimVocabulary(Stage[TrimmedVocabulary]):
    """Removes the tokens that do not occur in `texts` from a model and its tokenizer."""

    kind = "trim"
    version = 2  # since version 2, byte tokens of BPE tokenizers with byte_fallback are kept
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model to trim."""
    tokens: Tokens
    texts: Mapping[str, Files]
    """Text whose tokens are kept. It includes held-out text and evaluation texts, because the trimmed tokenizer would
    otherwise split these texts into unknown tokens. This stage neither chooses words nor trains on the text."""
    kept: str | None
    """Digest of the file with additional text whose tokens are kept; None without such a file."""

    def what(self) -> Mapping[str, Any]:
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "texts": {name: files.what() for name, files in self.texts.items()},
            "max_megabytes": self.config.vocabulary.max_megabytes,
            "keep": self.kept,
            "seed": self.config.seed,
        }

    def run(self, folder: Path, done: Done) -> Outcome[TrimmedVocabulary]:
        """Tokenizes the text in this process, and writes the trimmed model and tokenizer.

        Raises:
            ConfigError: the file with additional text cannot be read.
            DataError: there is no text.
            ModelError: the tokenizer or the model cannot be trimmed, or would lose a special token.
        """
        from adapt.vocabulary.model_changes import trim_model

        start, settings = self.start.made(done), self.config.vocabulary
        # checked again, because a stage of the chain may have produced the model after the first check
        refuse_additions(start.model, "trimmed")
        check_weights(start.model)
        texts = chain(_lines(settings.keep), *(whole_text(files, self.config) for files in self.texts.values()))
        return Outcome(trim_model(self.config, start, texts, list(self.texts), folder))


def _lines(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line for line in user_path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"vocabulary.keep: {file} cannot be read: {error}", "name a text file in UTF-8") from error


@dataclass(frozen=True)
class Begun(OneModel):
    """Result of `ScratchModel`: a model with random weights.

    The stage's folder contains the model and its tokenizer.
    """

    vocabulary: int
    """Number of tokens of the new tokenizer."""
    parameters: Less[int]
    """Number of parameters of the model."""

    def blocks(self, record: Record) -> list[Block]:
        made = (
            f"Made a tokenizer with {self.vocabulary:,} tokens and a model with {self.parameters:,} random parameters."
            " The model knows nothing until it is trained."
        )
        return [*summary(made), TextBlock(f"Model and tokenizer: {record.path}")]


@dataclass(frozen=True, eq=False)
class ScratchModel(Stage[Begun]):
    """Trains a tokenizer on a corpus, and makes a model with random weights."""

    kind = "scratch"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model whose architecture and kind of tokenizer are used."""
    tokens: Tokens
    domains: Mapping[str, Files]
    screening: Screening
    """Rules for excluding documents of the domains."""

    def what(self) -> Mapping[str, Any]:
        settings = self.config.vocabulary
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "domains": {name: files.what() for name, files in self.domains.items()},
            "size": settings.size,
            "dimensions": settings.dimensions,
            "max_megabytes": settings.max_megabytes,
            "seed": self.config.seed,
            **self.screening.what(self.domains),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Begun]:
        """Trains the tokenizer in this process, and draws the random weights of the model.

        Raises:
            DataError: the corpus has no text.
            ModelError: the dimensions cannot be set.
        """
        from adapt.vocabulary.model_changes import write_scratch

        texts, settings = self.screening.joined(self.domains, self.config, done), self.config.vocabulary
        first = next(texts, None)
        if first is None:
            raise empty_corpus(", ".join(self.domains))
        size = settings.size if isinstance(settings.size, int) else None
        every = chain([first], texts)
        start, seed = self.start.made(done), self.config.seed
        return Outcome(Begun(*write_scratch(start, every, size, settings.dimensions, seed, folder)))

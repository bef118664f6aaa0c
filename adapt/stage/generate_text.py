"""Defines the stages that generate text (`generate`, `synthesize`) and that drop unsuitable generated text (`filter`).

Filtering is a separate stage, so that the text is not generated again if only the filters or evaluation sets change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from adapt.config import Config, CorpusConfig, GenerateConfig, SynthesizeConfig, what
from adapt.corpus.corpora import FILES, dedup_identity, reading_identity
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.manifest import check_listed, items_of, read_slice, slices_of
from adapt.embed.text_chunks import ReadPool
from adapt.generate.rewriting import formats_of
from adapt.model.architecture import max_sequence_length
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.ray.runtime import connect
from adapt.runner import Done, Outcome, Stage
from adapt.runner.digest import Digests
from adapt.runner.record import cost_of
from adapt.select import TEXTS_FILE
from adapt.stage.prepare_text import Prepared, duplicates_of
from adapt.stage.text_sources import Dedup, Files, TaskTexts, excluding
from adapt.support.errors import ConfigError, DataError, ModelError
from adapt.terminal.console import log

MOST_PROMPTS = 10_000
"""Maximum number of prompts that are read. Any further prompts are ignored."""


@dataclass(frozen=True)
class GeneratedTexts:
    """Result of generating text."""

    texts: int
    tokens: int
    """Number of generated tokens."""
    cut: int
    """Number of texts that ended because they reached the maximum length."""
    tokens_per_device_second: float
    """Generated tokens per second and actor. An actor has a GPU or, without GPUs, a CPU core."""


@dataclass(frozen=True, eq=False)
class Generate(Stage[GeneratedTexts]):
    """Generates text with a model: a decoder, or an encoder by Gibbs sampling."""

    kind = "generate"
    version = 2  # since version 2, added tokens that are marked as special are never sampled
    device_time = "own"

    name: str
    config: Config
    way: Literal["decoder", "gibbs"]
    start: Start
    """Model that generates the text."""
    tokenizer: str
    """Digest of the tokenizer's files."""
    prompts: Files | None
    """Texts whose first tokens are used as prompts. If None, every prompt is only the start token."""

    def what(self) -> Mapping[str, Any]:
        used = ["tokens", "temperatures", "top_p", "min_length", "max_length", "seed"]
        used += ["sweeps", "masked_fraction"] if self.way == "gibbs" else []
        used += ["prompt_field", "prompt_tokens"] if self.prompts else []
        settings = what(self.config.generate)
        return {
            "way": self.way,
            "model": self.start.digest,
            "tokenizer": self.tokenizer,
            **{name: settings[name] for name in used},
            **({"prompts": self.prompts.reading} if self.prompts else {}),
        }

    def refuse_early(self) -> None:
        """Loads the tokenizer, so that an error in loading it is raised before any computation."""
        if self.start.vocabulary is None:
            field = "generate.generator" if self.config.mixture.replay_kind == "decoder" else "model.path"
            load_generators_tokenizer(self.start.pretrained, field)

    def run(self, folder: Path, done: Done) -> Outcome[GeneratedTexts]:
        """Generates the text on the cluster. Continues from the finished blocks of an interrupted run."""
        from adapt.generate import generate_blocks, makers

        section, prompts = self.config.generate, read_prompts(self.prompts) if self.prompts else []
        model = self.start.made(done)
        is_decoder = self.way == "decoder"
        maker = makers.FromDecoder(model, section, prompts) if is_decoder else makers.FromEncoder(model, section)
        connect(self.config.resources)
        figures = generate_blocks.make_texts(maker, section.tokens, section.max_length, folder, self.config.resources)
        return _generated(self.name, figures, self.config)


def read_prompts(files: Files) -> list[str]:
    """Reads the prompts, at most MOST_PROMPTS."""
    texts = (
        text
        for item in items_of(files.manifest, files.corpus)
        for piece in slices_of(item)
        for text in read_slice(piece, files.corpus)
    )
    usable = (str(text) for text in texts if not isinstance(text, Bad) and text.strip())
    prompts = list(islice(usable, MOST_PROMPTS))
    check_listed(files.manifest)
    if not prompts:
        raise DataError(
            "the files of generate.prompts have no text", "check generate.prompts and generate.prompt_field"
        )
    return prompts


@dataclass(frozen=True, eq=False)
class Synthesize(Stage[GeneratedTexts]):
    """Rewrites the training documents of a source in other formats with a generator."""

    kind = "synthesize"
    version = 3  # since version 3, texts have no reasoning, and prompts none of the document's special tokens
    device_time = "own"

    name: str
    config: Config
    files: Files
    """The source whose documents are rewritten."""
    dedup: Dedup | None
    """Stage that lists the duplicates to exclude. None without deduplication."""
    place: int
    """Index of this source among the sources that were deduplicated together."""
    generator: Pretrained
    digest: str
    """Digest of the generator's files."""

    def what(self) -> Mapping[str, Any]:
        section = what(self.config.synthesize)
        del section["cleaning"]  # only the stage `filter` uses this setting
        formats = [
            {"before": each.before, "after": each.after, "pairs": each.pairs, "name": each.name}
            for each in formats_of(self.config.synthesize)
        ]
        return {
            **section,
            "formats": formats,
            "generator": self.digest,
            "corpus": self.files.what(),
            **({"place": self.place} if self.dedup else {}),
        }

    def refuse_early(self) -> None:
        """Loads the generator's tokenizer, and checks that prompt and output fit in the generator's context.

        Raises:
            ModelError: the tokenizer cannot be loaded, or does not belong to the generator.
            ConfigError: documents and outputs are together longer than the generator accepts.
        """
        section, longest = self.config.synthesize, max_sequence_length(self.generator.model)
        tokenizer = load_generators_tokenizer(self.generator, "synthesize.generator")
        if longest is None:
            return
        from adapt.generate.makers import prompt_tokens

        fixed = max(len(prompt_tokens(tokenizer, each.prompt(""), 0)) for each in formats_of(section))
        if fixed + section.document_tokens + section.max_length > longest:
            raise ConfigError(
                f"synthesize.document_tokens {section.document_tokens}, the prompt of {fixed} tokens and"
                f" synthesize.max_length {section.max_length} are more than the {longest} tokens that the generator"
                " accepts",
                "lower synthesize.document_tokens or synthesize.max_length",
            )

    def run(self, folder: Path, done: Done) -> Outcome[GeneratedTexts]:
        """Rewrites the documents on the cluster. Continues from the finished blocks of an interrupted run."""
        connect(self.config.resources)
        from adapt.corpus.prepare_corpus import screen_of
        from adapt.generate import generate_blocks, makers

        section, corpus = self.config.synthesize, replace(self.files.corpus, write_rejects=False)
        screen = screen_of(corpus, folder, duplicates_of(self.dedup, self.place, done))
        maker = makers.Rewriting(self.generator, section)
        read = ReadPool(corpus, screen)
        figures = generate_blocks.rewrite_texts(
            maker, self.files.manifest, read, section.share, folder, self.config.resources
        )
        if not figures.texts:
            raise DataError(
                f"synthesize.share {section.share:g} selects no document of {self.name}", "raise synthesize.share"
            )
        return _generated(self.name, figures, self.config)


def _generated(name: str, figures: Any, config: Config) -> Outcome[GeneratedTexts]:
    """Returns the outcome of a stage that generated text, and logs the number of texts and tokens."""
    speed = figures.tokens / max(figures.seconds, 1e-9)
    log(f"{name}: {figures.texts:,} texts of {figures.tokens:,} tokens, {speed:,.0f} tokens per second per device")
    result = GeneratedTexts(figures.texts, figures.tokens, figures.cut, round(speed, 1))
    cost = cost_of(figures.seconds, config.resources.price_per_device_hour)
    return Outcome(result, {**cost, "tokens": figures.tokens})


@dataclass(frozen=True)
class FilteredTexts:
    """Result of filtering generated text.

    Each line of `texts.jsonl` is a kept text. Each line of `pairs.jsonl` is a kept pair.
    """

    texts: int
    tokens: int
    """Number of generated tokens of the kept texts and pairs."""
    pairs: int
    dropped: dict[str, int]
    """Number of dropped texts, keyed by reason."""
    dropped_tokens: dict[str, int]
    """Number of generated tokens of dropped texts, keyed by reason."""
    evaluation_texts: dict[str, Any]
    """Number of evaluation texts that were searched for, keyed by set and file."""


@dataclass(frozen=True, eq=False)
class FilterTexts(Stage[FilteredTexts]):
    """Drops generated texts that fail the cleaning, are near-duplicates, or contain evaluation or held-out text."""

    kind = "filter"

    name: str
    config: Config
    section: GenerateConfig | SynthesizeConfig
    """Section of the configuration that has the cleaning steps."""
    generated: Stage[GeneratedTexts]
    unseen: TaskTexts | None
    """Texts of task splits, such as test, that generated texts must not contain."""
    measured: tuple[Stage[Prepared], ...]
    """Stages with held-out text on which models are measured. A generated text is dropped if it equals a held-out
    document or was generated from one."""
    before: tuple[Files, ...]
    """Text on which losses are measured. Generated texts that are near copies of its documents are dropped."""

    @property
    def corpus(self) -> CorpusConfig:
        """Corpus settings for reading and cleaning the generated text and for finding copies in it."""
        corpus = self.config.corpus
        return replace(
            corpus,
            **FILES,
            paths=[],
            text_field="text",
            cleaning=cleaning_of(self.section, corpus),
            deduplicate="near",
            heldout_fraction=0.0,
        )

    def what(self) -> Mapping[str, Any]:
        return {
            "corpus": reading_identity(self.corpus, Digests()),
            "near": dedup_identity(self.corpus),
            **({"before": [files.what() for files in self.before]} if self.before else {}),
        }

    def run(self, folder: Path, done: Done) -> Outcome[FilteredTexts]:
        """Filters the text, and writes the remaining texts.

        Raises:
            DataError: no text to train on remains.
        """
        connect(self.config.resources)
        from adapt.generate.generate_blocks import filter_texts

        counts = filter_texts(
            done[self.generated].path,
            excluding(self.corpus, self.unseen, done),
            folder,
            folder / TEXTS_FILE,
            [done[text].path for text in self.measured],
            [(files.source, files.manifest, files.corpus) for files in self.before],
            self.config.resources.stall_s,
        )
        number = done[self.generated].result.texts
        if not counts.texts and not counts.pairs:
            section = "generate" if isinstance(self.section, GenerateConfig) else "synthesize"
            raise DataError(
                f"{self.name}: all {number:,} generated texts were dropped: {counts.reasons}",
                f"loosen the filters ({section}.cleaning), change {section}.temperatures, or choose a better generator",
            )
        share = counts.tokens / max(done[self.generated].result.tokens, 1)
        dropped = f"; dropped: {counts.reasons}" if counts.dropped else ""
        log(
            f"{self.name}: {counts.texts + counts.pairs:,} of {number:,} texts kept, {share:.0%} of the tokens{dropped}"
        )
        return Outcome(FilteredTexts(**vars(counts)))


def cleaning_of(section: GenerateConfig | SynthesizeConfig, corpus: CorpusConfig) -> list[str | dict[str, Any]]:
    """Returns the cleaning steps for generated text: those of `section`, or else those of `corpus` and `repetition`."""
    if section.cleaning is not None:
        return section.cleaning
    names = [step if isinstance(step, str) else next(iter(step), "") for step in corpus.cleaning]
    return corpus.cleaning if "repetition" in names else [*corpus.cleaning, "repetition"]


def load_generators_tokenizer(generator: Pretrained, field: str) -> Any:
    """Loads the tokenizer of a generator. `field` is the configuration field that names the generator, for messages.

    Raises:
        ModelError: the tokenizer cannot be loaded, or does not belong to the model.
    """
    from adapt.model.tokenizer import load_tokenizer

    try:
        return load_tokenizer(generator.model, generator.tokenizer, generator.trust_remote_code)
    except ModelError as error:
        raise ModelError(f"{field}: {error.what}", error.fix) from error

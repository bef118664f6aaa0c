"""Builds the stages that generate general text for replay, and the stages that rewrite documents of the domain."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from adapt.config import Config, GenerateConfig, SynthesizeConfig
from adapt.corpus.cleaning.cleaning_blocks import blocks_of
from adapt.corpus.corpora import MIXED_IN
from adapt.generate.rewriting import formats_of
from adapt.model.architecture import is_decoder_folder, max_sequence_length
from adapt.model.locate import Pretrained, locate, model_files, tokenizer_files
from adapt.model.start import Start
from adapt.runner import Stage
from adapt.stage.add_head import RedrawTop, has_untrained_head
from adapt.stage.context import Context
from adapt.stage.generate_text import FilterTexts, Generate, Synthesize, cleaning_of
from adapt.stage.prepare_text import Prepare, Prepared, PrepareTexts
from adapt.stage.text_sources import Files, TaskTexts, listed_files
from adapt.stage.training_plan import REPHRASED
from adapt.support.errors import ConfigError

AROUND = {"decoder": 1, "gibbs": 2}
"""Number of special tokens that the model's input adds to a generated text, keyed by generation method."""


def generated_replay(
    context: Context,
    base: Start,
    general: Prepare | None,
    unseen: TaskTexts | None,
    measured: Sequence[Stage[Prepared]],
    domain: Iterable[Stage[Prepared]] = (),
) -> PrepareTexts:
    """Builds the stages that generate text, filter it, and prepare it to be replayed.

    Args:
        context: context of the job.
        base: the model that generates the text if mixture.replay_kind is `self` or `gibbs`.
        general: the general text on which losses are measured, or None.
        unseen: texts that the replayed text must not contain.
        measured: all texts on which losses are measured.
        domain: the domain's text, by source. Near copies of its held-out documents are dropped.
    """
    config = context.config
    kind, section, name = config.mixture.replay_kind, config.generate, f"{config.name}-replay"
    _check_section("generate", section, config)
    if config.mixture.replay_paths:
        raise ConfigError(
            f"mixture.replay_paths is set, but mixture.replay_kind {kind} generates the replayed text",
            "remove mixture.replay_paths, or set mixture.replay_kind to files",
        )
    if section.generator and kind != "decoder":
        raise ConfigError(
            f"generate.generator is set, but mixture.replay_kind is {kind}",
            "set mixture.replay_kind to decoder, or remove generate.generator",
        )
    way: Literal["decoder", "gibbs"] = "gibbs" if kind == "gibbs" else "decoder"
    start = _given_generator(context, section.generator) if kind == "decoder" else _own_model(base, config)
    _check_way(start.pretrained.model, kind)
    longest = max_sequence_length(start.pretrained.model)
    if longest is not None and section.max_length + AROUND[way] > longest:
        raise ConfigError(
            f"generate.max_length is {section.max_length}, but the model takes at most {longest} tokens,"
            f" including {AROUND[way]} special",
            f"set generate.max_length to {longest - AROUND[way]} or less",
        )
    if way == "gibbs" and section.prompts:
        raise ConfigError(
            "generate.prompts is set, but mixture.replay_kind gibbs generates text from mask tokens, without prompts",
            "remove generate.prompts",
        )
    prompts = _prompts(context, section) if section.prompts else None
    tokenizer = context.digests.of_all(tokenizer_files(start.pretrained.tokenizer))
    generated = Generate(name, config, way, start, tokenizer, prompts)
    before = (replace(general.files, source="general"),) if general else ()
    held_out = (text.files for text in domain if isinstance(text, Prepare))
    filtered = FilterTexts(name, config, section, generated, unseen, tuple(measured), (*before, *held_out))
    return _prepared(context, filtered)


def _prepared(context: Context, kept: FilterTexts) -> PrepareTexts:
    """Builds the stage that tokenizes generated text after filtering."""
    return PrepareTexts.of(context, kept, context.config.corpus.heldout_fraction, kept.measured)


def _check_section(name: str, section: GenerateConfig | SynthesizeConfig, config: Config) -> None:
    """Raises an error if settings contradict each other, or if a cleaning block is unknown."""
    if section.min_length > section.max_length:
        raise ConfigError(
            f"{name}.min_length {section.min_length} is above {name}.max_length {section.max_length}",
            f"lower {name}.min_length",
        )
    if not section.temperatures:
        raise ConfigError(f"{name}.temperatures is empty", "give at least one temperature, such as [1.0]")
    blocks_of(cleaning_of(section, config.corpus))


def _own_model(base: Start, config: Config) -> Start:
    """Returns the job's model before its top layers were reinitialized."""
    start = base.training.start if isinstance(base.training, RedrawTop) else base
    kind = config.mixture.replay_kind
    if has_untrained_head(start):
        raise ConfigError(
            f"mixture.replay_kind is {kind}, but the model's head is new and untrained (model.head), so it"
            " cannot generate text",
            "set mixture.replay_kind to decoder and name a decoder in generate.generator; or set it to files and name"
            " general text in mixture.replay_paths",
        )
    if start.turned is not None:
        raise ConfigError(
            f"mixture.replay_kind is {kind}, but model.attention turns the model into an encoder",
            f"set mixture.replay_kind to decoder, and generate.generator to {config.model.path}",
        )
    return start


def _given_generator(context: Context, generator: str | None) -> Start:
    """Returns the decoder that generate.generator names."""
    if not generator:
        raise ConfigError(
            "mixture.replay_kind is decoder, but generate.generator is not set",
            "set it to the folder or Hugging Face id of a decoder",
        )
    if made := context.made.get(generator):
        return made
    folder = locate(generator)
    return Start(Pretrained(folder, folder), context.digests.of_all(model_files(folder)))


def _check_way(folder: Path, kind: str) -> None:
    """Checks that text is generated from left to right with a decoder, or by Gibbs sampling with an encoder."""
    if is_decoder_folder(folder) == (kind != "gibbs"):
        return
    if kind == "gibbs":
        raise ConfigError(
            f"mixture.replay_kind is gibbs, but {folder} is a decoder", "set mixture.replay_kind to self for a decoder"
        )
    what = "mixture.replay_kind is self" if kind == "self" else "mixture.replay_kind is decoder"
    raise ConfigError(
        f"{what}, but {folder} is not a decoder, so it cannot generate text from left to right",
        "set mixture.replay_kind to gibbs, which needs an encoder; or set mixture.replay_kind to decoder and"
        " generate.generator to a decoder; or set method.kind to distill, which needs no general text",
    )


def _prompts(context: Context, section: GenerateConfig) -> Files:
    """Lists the files of the prompts, which are read without cleaning."""
    corpus = replace(
        context.config.corpus,
        **MIXED_IN,
        paths=section.prompts,
        text_field=section.prompt_field,
        cleaning=[],
        decontaminate=[],
    )
    return listed_files(context, corpus, f"{context.config.name}-prompts")


@dataclass(frozen=True)
class Rewritten:
    """The rewritten documents of a domain."""

    sources: Mapping[str, Stage[Prepared]] = field(default_factory=dict)
    """Rewritten text to train on, keyed by source name."""
    pairs: tuple[FilterTexts, ...] = ()
    """Stages that write only pairs. Empty if any configured format writes text to train on."""


def rewritten_documents(context: Context, sources: Mapping[str, Stage[Prepared]], general: Prepare | None) -> Rewritten:
    """Builds the stages that rewrite the documents of each source, and that filter and prepare the results.

    Args:
        context: context of the job.
        sources: the domain's text to train on, keyed by source.
        general: the general text on which losses are measured, or None.

    Returns:
        The rewritten documents. There are none if synthesize.generator is not set.
    """
    config, section = context.config, context.config.synthesize
    if not section.generator:
        if config.mixture.rephrased_fraction is not None:
            raise ConfigError(
                "mixture.rephrased_fraction is set, but no document is rewritten",
                "set synthesize.generator, or remove mixture.rephrased_fraction",
            )
        return Rewritten()
    _check_section("synthesize", section, config)
    only_pairs = all(each.pairs for each in formats_of(section))
    if not only_pairs:
        _check_mixture(config)
    elif config.mixture.rephrased_fraction is not None:
        raise ConfigError(
            "mixture.rephrased_fraction is set, but all formats in synthesize.formats write only pairs, and no text to"
            " train on",
            "remove mixture.rephrased_fraction, or add a format such as question_answer",
        )
    folder = locate(section.generator)
    if not is_decoder_folder(folder):
        raise ConfigError(
            f"synthesize.generator {section.generator} is not a decoder, so it cannot write text",
            "name a decoder, such as an instruct model",
        )
    generator, digest = Pretrained(folder, folder), context.digests.of_all(model_files(folder))
    measured = (general,) if general else ()
    kept: dict[str, FilterTexts] = {}
    for source, text in sources.items():
        if not isinstance(text, Prepare) or text.files.corpus.streaming:
            raise ConfigError(
                "synthesize.generator rewrites the documents of a prepared corpus, not of a selection or a stream",
                "name the documents in corpus.paths, and remove corpus.streaming",
            )
        name = f"{text.name}-rephrased"
        synthesized = Synthesize(name, config, text.files, text.dedup, text.place, generator, digest)
        before = (*((replace(general.files, source="general"),) if general else ()), text.files)
        kept[source] = FilterTexts(name, config, section, synthesized, None, measured, before)
    if only_pairs:
        return Rewritten(pairs=tuple(kept.values()))
    return Rewritten(
        {
            REPHRASED if len(sources) == 1 else f"{source} {REPHRASED}": _prepared(context, texts)
            for source, texts in kept.items()
        }
    )


def _check_mixture(config: Config) -> None:
    mixture = config.mixture
    weighted = any(source.weight is not None for source in config.corpus.sources)
    if weighted and mixture.rephrased_fraction is None:
        raise ConfigError(
            "corpus.sources have weights, but the rewritten documents have none",
            "set mixture.rephrased_fraction to the share of rewritten documents",
        )
    if mixture.order == "sequential" and mixture.rephrased_fraction is not None:
        raise ConfigError(
            "mixture.rephrased_fraction is set, but with mixture.order sequential, each source is passed through once",
            "remove mixture.rephrased_fraction, or set mixture.order to interleaved",
        )


def refuse_rewriting(config: Config, job: str) -> None:
    """Checks that synthesize.generator is not set in a job that does not rewrite documents."""
    if config.synthesize.generator:
        raise ConfigError(
            f"synthesize.generator is set, but dontstop {job} rewrites no documents", "use it with dontstop dapt"
        )

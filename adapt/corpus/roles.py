"""The corpora of a configuration beside the domain's: general text, replayed text, the pool of TAPT."""

from dataclasses import replace
from typing import Any

from adapt.config import Config, CorpusConfig
from adapt.corpus.files.sources import sources_of

FILES: dict[str, Any] = {"source": "files", "sources": [], "dataset": None, "streaming": False}
"""What a second corpus, which is always given as paths, does not take from the first."""
MIXED_IN: dict[str, Any] = {**FILES, "deduplicate": "none"}
"""The same of one that is trained on beside it."""


def general_corpus(config: Config) -> CorpusConfig:
    """All of it is held out: it is measured on, unless some of it is trained on (`Corpora.general`)."""
    evaluation = config.evaluation
    return replace(
        config.corpus,
        **FILES,
        paths=evaluation.general_paths,
        text_field=evaluation.general_text_field,
        decontaminate=[],
        heldout_fraction=1.0,
    )


def replayed_corpus(config: Config) -> CorpusConfig:
    """It is trained on, but for the share that is held out of every corpus: a domain may hold the same text."""
    mixture = config.mixture
    return replace(config.corpus, **MIXED_IN, paths=mixture.replay_paths, text_field=mixture.replay_text_field)


def pooled_corpus(config: Config) -> CorpusConfig:
    """The pool of TAPT; as replayed text."""
    tapt = config.tapt
    return replace(config.corpus, **MIXED_IN, paths=tapt.pool_paths, text_field=tapt.pool_text_field)


def selection_pool(config: Config) -> CorpusConfig:
    """The pool that documents are selected of, without the texts of evaluation sets."""
    select = config.select
    return replace(config.corpus, **MIXED_IN, paths=select.pool_paths, text_field=select.pool_text_field)


def selection_target(config: Config) -> CorpusConfig:
    """Text that selected documents should resemble, read as the pool is: selections and embedders learn from it."""
    select = config.select
    return replace(config.corpus, **MIXED_IN, paths=select.target_paths, text_field=select.target_text_field)


def trained_corpora(config: Config) -> dict[str, list[tuple[str, CorpusConfig]]]:
    """What a configuration trains on besides the text of tasks: by field, each source's name for folders and corpus."""
    corpus, name = config.corpus, config.name
    corpora: dict[str, list[tuple[str, CorpusConfig]]] = {}
    if corpus.paths or corpus.sources or corpus.source != "files":
        sources = [(f"{name}-{source}" if source else name, as_corpus) for source, as_corpus in sources_of(corpus)]
        corpora["corpus.sources" if corpus.sources else "corpus.paths"] = sources
    elif config.tapt.pool_paths:
        corpora["tapt.pool_paths"] = [(f"{name}-pool", pooled_corpus(config))]
    elif config.select.pool_paths:
        corpora["select.pool_paths"] = [(f"{name}-pool", selection_pool(config))]
    if config.mixture.replay_paths:
        corpora["mixture.replay_paths"] = [(f"{name}-replay", replayed_corpus(config))]
    return corpora

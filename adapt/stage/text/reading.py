"""Checks before a corpus is read, and the filter that keeps texts out of it that must not be seen."""

from dataclasses import replace

from adapt.config import Config, CorpusConfig, EvaluationSet
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.files.sources import sources_of
from adapt.preflight import check_memory, check_weights
from adapt.runner import Done
from adapt.select import TEXTS_FILE
from adapt.stage.context import Tokens
from adapt.stage.text.task_texts import TaskTexts


def check_and_connect(manifest: Manifest, corpus: CorpusConfig, tokens: Tokens, config: Config) -> None:
    """All that can be checked before a corpus is read.

    Raises:
        AdaptError: its files cannot be read, or the training that comes after could not run.
    """
    from adapt.corpus.readable import check_readable
    from adapt.ray.runtime import address_of, await_resources, connect

    is_domain = any(corpus == each for _, each in sources_of(config.corpus))  # others need not have entities
    check_readable(manifest, corpus, tokens.form.entity_field if is_domain else None)
    check_weights(tokens.pretrained.model)
    connect(config.resources)
    if address_of(config.resources) is None:
        await_resources(config.resources)  # for the training: this machine will not grow meanwhile
    check_memory(config, tokens.pretrained.model)


def without(corpus: CorpusConfig, unseen: TaskTexts | None, done: Done) -> CorpusConfig:
    """The configuration of a corpus, changed so that texts that must not be seen are left out."""
    if unseen is None:
        return corpus
    file = str(done[unseen].path / TEXTS_FILE)
    return replace(corpus, decontaminate=[*corpus.decontaminate, EvaluationSet("dev-and-test", file)])

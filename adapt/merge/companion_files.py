"""Writes the files of a merged model other than its weights: settings, tokenizer, chat template and model card."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.model import locate
from adapt.model.model_card import card_code, card_text, front_matter, loading_code, settings, table
from adapt.model.sentence_vectors import SentenceVectors, read_sentence_vectors, write_sentence_vectors
from adapt.runner.files import file_aside, write_atomically
from adapt.support.errors import ModelError

BESIDE = (locate.GENERATION, *locate.TEMPLATES)
"""Names of optional files of a model that do not affect the model's scores: generation settings and chat templates."""


def dress(model: locate.Pretrained, facts: Mapping[Path, MergeFacts], speaker: locate.Pretrained | None = None) -> None:
    """Adds settings, tokenizer and model card to folders with weights, so that Hugging Face libraries can load them.

    If `model` is in the format of sentence-transformers, the folders are, too.

    Args:
        model: the model whose settings and tokenizer are copied.
        facts: the content of each folder's model card, keyed by folder.
        speaker: another model whose chat template and generation settings are copied; None to copy those of `model`.
    """
    vectors, has_head = read_sentence_vectors(model.model), not _is_headless(model)
    for folder, card in facts.items():
        for file in _files(model):
            _copy(file, folder / file.name)
        if speaker:
            _copy_beside(speaker, folder)
        if vectors:
            write_sentence_vectors(vectors, folder)
        write_atomically(folder / "README.md", merge_card(card, vectors, has_head))


def _is_headless(model: locate.Pretrained) -> bool:
    from adapt.model.rebuilt_model import is_headless  # imported here, because it loads torch

    with suppress(ModelError):  # such as a model with its own code that may not run
        return is_headless(model.model, model.trust_remote_code)
    return False


def _files(model: locate.Pretrained) -> Iterator[Path]:
    weights = {*locate.weight_files(model.model)}
    yield from (file for file in locate.model_files(model.model) if file not in weights)
    yield from _beside(model)
    if model.tokenizer != model.model:
        yield from locate.tokenizer_files(model.tokenizer)


def _beside(model: locate.Pretrained) -> Iterator[Path]:
    for folder in dict.fromkeys((model.model, model.tokenizer)):
        yield from (folder / name for name in BESIDE if (folder / name).exists())


def _copy_beside(speaker: locate.Pretrained, folder: Path) -> None:
    """Copies chat template and generation settings. A template in tokenizer_config.json is written to its own file."""
    settings = speaker.tokenizer / locate.TOKENIZER_CONFIG
    template = locate.read_json(settings).get("chat_template") if settings.is_file() else None
    if isinstance(template, str):
        write_atomically(folder / locate.TEMPLATES[0], template)
    for file in _beside(speaker):
        _copy(file, folder / file.name)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
        return
    with file_aside(target) as aside:
        shutil.copyfile(source, aside)


CARD = """\
---
{front}
---

# {name}

Merged from {base_model} and {models} without training: `{kind}`, share {share:g}.

## How it was made

{made}

{rule}

## Models

{sources}

## How to load it

{loading}

The merged model has not been evaluated. Weights were merged in fp32, and are stored in the data types of the base.
"""


@dataclass(frozen=True)
class MergeFacts:
    """The content of the model card of a merged model."""

    name: str
    base_model: str
    kind: str
    rule: str
    """Sentences that describe what the merge method computes."""
    share: float
    settings: Mapping[str, Any]
    sources: Sequence[tuple[str, str, str, str]]
    """Four texts for the base and for each model: role, name in the configuration, digest or key, and weight in the
    merge."""
    causal: bool


def merge_card(facts: MergeFacts, vectors: SentenceVectors | None, has_head: bool) -> str:
    """Returns the model card: YAML metadata and Markdown text, like `adapt.evaluate.export_card.model_card`.

    Args:
        facts: the content of the card.
        vectors: how sentence-transformers computes sentence vectors; None if the folder is not in its format.
        has_head: whether the weights include a language-model head.
    """
    number = len(facts.sources) - 1
    task, library = "text-generation" if facts.causal else "fill-mask", "transformers"
    if not has_head:
        task = "feature-extraction"
    if vectors:
        task, library = "sentence-similarity", "sentence-transformers"
    return CARD.format(
        front=front_matter(facts.base_model, task, library),
        loading=loading_code(facts.causal, vectors=vectors, has_head=has_head),
        name=card_text(facts.name),
        base_model=card_code(facts.base_model),
        models=f"{number} model{'' if number == 1 else 's'}",
        kind=facts.kind,
        share=facts.share,
        made=settings(facts.settings),
        rule=facts.rule,
        sources=table(("role", "model", "digest or key", "weight"), facts.sources),
    )

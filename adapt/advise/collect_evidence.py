"""Measures text samples and labelled tasks with the model and the model's tokenizer, as evidence for advice."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from adapt.advise.corpus_sample import SAMPLED, Sample
from adapt.advise.evidence import Evidence, TaskEvidence, TextEvidence
from adapt.config import Config
from adapt.evaluate.losses import SAMPLE_SEED, loss_on
from adapt.evaluate.model_matrix import word_overlaps
from adapt.model import load, rebuilt_model, tokenizer
from adapt.model.locate import Pretrained
from adapt.model.packing.padded import document_rows, padding_of
from adapt.model.size import model_size
from adapt.model.tokenize import piece_tokenizer, text_tokenizer
from adapt.support.errors import DataError
from adapt.task.prepare_task import Facts, Split
from adapt.train.capacity.flops import workload
from adapt.vocabulary import vocabulary_results, word_reader
from adapt.vocabulary.analysis import analyze_words

MEASURED_TOKENS = 20_000
"""Number of tokens on which the loss of each sample is measured. Masked language modelling predicts about 3,000 of
these tokens, which gives a standard error of the loss of about 0.05 nats."""
ROWS_PER_PASS = 16
"""Number of rows per forward pass that the estimate of padding assumes if `training.micro_batch` is `auto`."""
WORD = re.compile(r"\w+|[^\w\s]")


def look(config: Config, pretrained: Pretrained, samples: Mapping[str, Sample], tasks: Mapping[str, Path]) -> Evidence:
    """Measures all samples and tasks, on the CPUs of this process.

    Args:
        config: the job's configuration.
        pretrained: the model.
        samples: samples of the configured texts, keyed by `corpus`, `general`, `pool` or `candidates`.
        tasks: folders of prepared tasks, keyed by name.

    Raises:
        DataError: a sample has no text.
    """
    for name, sample in samples.items():
        if not sample.texts:
            raise DataError(
                f"the {name} text is empty after cleaning", "check its paths, text field and corpus.cleaning"
            )
    observer = _Observer(config, pretrained)
    texts = {name: observer.text(sample) for name, sample in samples.items()}
    if "corpus" in texts:
        texts["corpus"] = replace(texts["corpus"], extension=observer.extension(samples["corpus"]))
    words = {name: sample.texts for name, sample in samples.items() if name in ("corpus", "general")}
    overlap = word_overlaps(words)["corpus"] if len(words) == 2 else []
    rows = document_rows(observer.model)
    return Evidence(
        [observer.task(folder, words) for folder in tasks.values()],
        **texts,
        way=rows.way if rows else "packed",
        has_head=observer.has_head,
        overlap=max(overlap, default=None),
    )


class _Observer:
    """Measures text samples and labelled tasks with a model and the model's tokenizer."""

    def __init__(self, config: Config, pretrained: Pretrained) -> None:
        causal = config.objective.kind == "causal"
        self.config, self.size = config, model_size(pretrained.model)
        self.tokenizer: PreTrainedTokenizerFast = tokenizer.load_text_tokenizer(pretrained)
        self.quick = text_tokenizer.QuickTokenizer(self.tokenizer.backend_tokenizer)
        self.has_head = causal or not rebuilt_model.missing_head(pretrained.model, pretrained.trust_remote_code)
        self.model: PreTrainedModel = self.loaded(pretrained, causal)

    def loaded(self, pretrained: Pretrained, causal: bool) -> PreTrainedModel:
        """Loads the model.

        Adds a new language-model head if the model has none, as training with `model.head: new` does.
        """
        if self.has_head:
            return load.load_model(pretrained.model, causal, pretrained.trust_remote_code)
        with TemporaryDirectory() as folder:
            rebuilt_model.write_with_head(pretrained, Path(folder))
            return load.load_model(Path(folder), causal, pretrained.trust_remote_code)

    def text(self, sample: Sample) -> TextEvidence:
        tokens = [ids.astype(np.int64) for ids in self.quick(sample.texts).lists(piece_tokenizer.IDS)]
        size = sum(len(text.encode("utf-8", "replace")) for text in sample.texts)
        return TextEvidence(
            documents=sample.documents,
            bytes=sample.bytes,
            tokens=sample.bytes and round(sample.bytes / size * sum(map(len, tokens))),
            is_exact=sample.is_exact,
            sampled=len(tokens),
            fertility=self.fertility(sample.texts, tokens),
            loss=self.loss(tokens),
            padding=self.padding([len(ids) for ids in tokens]),
        )

    def padding(self, lengths: Sequence[int]) -> float | None:
        """Returns the share of row positions that are padding if each document is a separate row.

        The result is None if the model packs several documents into a row.

        Args:
            lengths: number of tokens of each document, in training order.
        """
        rows, training = document_rows(self.model), self.config.training
        if rows is None or not sum(lengths):
            return None
        size = training.micro_batch if isinstance(training.micro_batch, int) else ROWS_PER_PASS
        ends = np.cumsum(lengths)
        cuts = np.arange(training.sequence_length, ends[-1], training.sequence_length)
        pieces = np.diff(np.union1d(ends, cuts), prepend=0)
        of_pass = (np.cumsum(pieces) - 1) // (training.sequence_length * size)
        passes = [pieces[of_pass == number].tolist() for number in np.unique(of_pass)]
        return padding_of(passes, rows.way, "cpu").share

    def extension(self, sample: Sample) -> vocabulary_results.Extension | None:
        reader = word_reader.WordReader(self.tokenizer.backend_tokenizer)
        names = {number: reader.surface(piece) for piece, number in self.tokenizer.get_vocab().items()}
        work = workload(self.config.objective, self.config.training.sequence_length)
        analysis = analyze_words(sample.texts, reader, names, self.config.vocabulary.min_count, self.size, work)
        if not analysis or not analysis.elbow:
            return None
        return next((extension for extension in analysis.curve if extension.tokens == analysis.elbow), None)

    def task(self, folder: Path, words: Mapping[str, list[str]]) -> TaskEvidence:
        facts, train, test = Facts.load(folder), Split.load(folder, "train"), Split.load(folder, "test")
        drawn = np.random.default_rng(SAMPLE_SEED).permutation(len(train))[:SAMPLED]
        tokens = [train.tokens[number] for number in drawn]
        texts = self.tokenizer.batch_decode([ids.tolist() for ids in tokens], skip_special_tokens=True)
        labels = np.concatenate([np.atleast_1d(np.array(label, np.int64)) for label in train.labels])
        # number of examples (or of words, if words have labels) of each class
        counts = np.unique(labels[labels >= 0], return_counts=True)[1]
        near = {name: word_overlaps({"task": texts, name: others})["task"][0] for name, others in words.items()}
        return TaskEvidence(
            name=facts.name,
            examples=len(train),
            tokens=sum(map(len, train.tokens)),
            classes=len(facts.labels),
            rarest=int(counts.min()) if len(counts) else 0,
            test=len(test),
            leaked=sum(test.leaked),
            fertility=self.fertility(texts, tokens),
            loss=self.loss(tokens),
            overlap=near.get("corpus"),
            general_overlap=near.get("general"),
        )

    def fertility(self, texts: Sequence[str], tokens: Sequence[np.ndarray]) -> float:
        special = self.tokenizer.all_special_ids
        pieces = sum(int((~np.isin(ids, special)).sum()) for ids in tokens)
        return pieces / max(1, sum(len(WORD.findall(text)) for text in texts))

    def loss(self, tokens: Sequence[np.ndarray]) -> float:
        before = np.cumsum([0, *map(len, tokens)])[:-1]
        first = [ids for ids, so_far in zip(tokens, before, strict=True) if so_far < MEASURED_TOKENS and len(ids)]
        return loss_on(first, self.model, self.tokenizer, self.config, torch.device("cpu"))

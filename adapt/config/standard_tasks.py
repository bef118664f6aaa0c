"""Sections for standard evaluations of models: tasks of lm-evaluation-harness and of MTEB."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from adapt.config.fields import NonNegativeInt, PositiveInt, how, how_list


@dataclass(frozen=True)
class HarnessConfig:
    """Tasks of lm-evaluation-harness on which decoders are measured (dontstop dapt, tapt, sequence and evaluate).

    Needs `pip install 'dontstop[harness]'` and objective.kind causal. The models before and after training answer the
    same items, so changes are paired.
    """

    tasks: list[str] = field(default_factory=list)
    """Names of tasks, groups or tags, such as `[arc_easy, wikitext]`: those of lm-evaluation-harness, whose data come
    from the Hugging Face Hub or its cache, and those of harness.include_path. An empty list measures nothing."""
    include_path: str | None = how(None)
    """Folder with your own task files (YAML of lm-evaluation-harness). Their data are local files
    (`dataset_path: json`, `dataset_kwargs.data_files`; a relative path starts at the task file), or a dataset of the
    Hub. null reads no files."""
    functions: list[str] = how_list()
    """Names of your own tasks whose entries `!function FILE.NAME` may run the Python file next to the task file. Other
    tasks with such entries are refused, because a configuration must not name code unseen."""
    num_fewshot: NonNegativeInt | None = None
    """Number of solved examples in each prompt; null is that of each task."""
    fewshot_seed: NonNegativeInt = 1234
    """Seed that draws the solved examples. The default is that of lm-evaluation-harness."""
    limit: PositiveInt | None = None
    """Number of items per task, the first ones; null takes all. With a limit, scores cannot be compared with
    published ones."""
    batch_size: PositiveInt = how(8)
    """Number of texts per forward pass. Lower it if memory is short."""


@dataclass(frozen=True)
class OwnMtebTask:
    """A task for sentence vectors from files of your own (jsonl, csv, tsv, parquet or Arrow)."""

    name: str
    """Short name, shown in tables."""
    kind: Literal["classification", "sts", "retrieval"]
    """`classification`: logistic regression on the vectors of 8 examples per label, mean accuracy of 10 draws.
    `sts`: rank correlation (Spearman) of the cosine of two texts with their score. `retrieval`: nDCG@10."""
    test: str | list[str] = field(default_factory=list)
    """Files with the items: labelled texts, scored pairs, or queries with relevant texts."""
    train: str | list[str] = field(default_factory=list)
    """`classification`: files with the labelled texts to learn from."""
    corpus: str | list[str] = field(default_factory=list)
    """`retrieval`: files with further texts to search in."""
    text_field: str = "text"
    """Field of the text, the first text of a pair, or the query."""
    pair_field: str = "pair"
    """`sts` and `retrieval`: field of the second text, or of the relevant text or list of texts."""
    label_field: str = "label"
    """`classification` and `sts`: field of the label, or of the score (a number)."""


@dataclass(frozen=True)
class MtebConfig:
    """Tasks of MTEB on which sentence vectors are measured (dontstop dapt, tapt, sequence and evaluate).

    Needs `pip install 'dontstop[mteb]'` and a pooling (export.sentence_transformers). sentence-transformers makes the
    vectors, as with the exported folder.
    """

    tasks: list[str] = field(default_factory=list)
    """Names of tasks of MTEB, such as `[Banking77Classification, SciFact]`. Their data come from the Hugging Face Hub
    or its cache. An empty list measures none."""
    languages: list[str] = field(default_factory=list)
    """Codes of ISO 639-3, such as `[eng]`, to which tasks with several languages are limited; an empty list takes all
    languages of each task."""
    own: list[OwnMtebTask] = how_list()
    """Your own tasks: a list of {name, kind, test, ...} (docs/guide/tasks.md)."""
    batch_size: PositiveInt = how(32)
    """Number of texts per forward pass. Lower it if memory is short."""

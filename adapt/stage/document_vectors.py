"""Defines the stages that compute and index vectors of documents, with which `select` compares documents.

`enough` checks that a pool has at least as many documents as the number of neighbours to search. `embedder` trains an
embedder on the texts. `embed` computes the vectors of the texts. `index` makes these vectors searchable.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import ModelConfig, ResourcesConfig
from adapt.embed.embedder import EMBEDDERS, Embedder, embedder_of
from adapt.embed.text_chunks import LinesSource, PoolSource, TextSource
from adapt.embed.vector_files import build_on_cluster
from adapt.model.start import Start
from adapt.ray.runtime import connect
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.stage import canonical, deciding
from adapt.select import TEXTS_FILE
from adapt.select.pool import Pool, guards
from adapt.select.selection import Vectors
from adapt.select.vector_search import check_enough
from adapt.stage.context import Context, located
from adapt.stage.prepare_text import Prepared
from adapt.stage.text_sources import Files, TaskTexts, excluding

if TYPE_CHECKING:
    from adapt.embed.cluster_embedding import StoredType
    from adapt.index.index_files import IndexKind


@dataclass(frozen=True)
class PoolTexts:
    """The cleaned text of a pool, without its held-out documents."""

    files: Files
    unseen: TaskTexts | None = None
    """Texts of task splits, such as test. Documents that contain one of these texts are excluded from the pool."""
    measured: tuple[Stage[Prepared], ...] = ()
    """Stages with held-out text on which models are measured. The documents of this text are excluded from the pool."""

    def what(self) -> dict[str, Any]:
        """Returns the settings for reading the pool, which enter the stage's key."""
        return self.files.what()

    def source(self, done: Done) -> PoolSource:
        """Returns the object from which Ray tasks read the pool."""
        corpus, measured = excluding(self.files.corpus, self.unseen, done), [done[text].path for text in self.measured]
        return PoolSource(self.files.manifest, corpus, tuple(measured))


@dataclass(frozen=True)
class StageTexts:
    """Texts that a stage wrote to `texts.jsonl`, with their ids."""

    stage: Stage[Any]

    def what(self) -> dict[str, Any]:
        """Returns an empty mapping, because the key of the stage identifies the texts."""
        return {}

    def source(self, done: Done) -> TextSource:
        """Returns the object from which Ray tasks read the texts."""
        return LinesSource(done[self.stage].path / TEXTS_FILE)


@dataclass(frozen=True)
class Embedding:
    """An embedder with its options, seed and model."""

    kind: str
    options: Mapping[str, Any]
    seed: int
    start: Start | None
    """Model that the embedder reads. None if the embedder needs no model."""

    @classmethod
    def of(cls, context: Context, kind: str, options: Mapping[str, Any]) -> "Embedding":
        """Creates the embedder of a job. It reads the model at its option `path`, or else the context's initial model.

        Raises:
            ConfigError: no embedder has this name, an option is wrong, or a package is missing.
            ModelError: the model does not exist.
        """
        seed = context.config.seed
        embedder = embedder_of(kind, dict(options), seed)
        start = None
        if embedder.reads_model:
            model, path = context.config.model, getattr(embedder.options, "path", None)
            own = ModelConfig(path=path, trust_remote_code=model.trust_remote_code) if path else None
            start = located(own, context.digests) if own else context.start
        embedder_of(kind, dict(options), seed, start.pretrained if start else None).check()
        return cls(kind, options, seed, start)

    @property
    def learns(self) -> bool:
        """Whether the embedder must be trained on the texts before it can embed them."""
        return EMBEDDERS.load(self.kind).learns

    def what(self) -> dict[str, Any]:
        """Returns the options, model and package versions that determine the vectors.

        For a user's embedder, the source code is included.
        """
        embedder = self.made(None)
        options = {
            name: value for name, value in embedder.what().items() if name != "path"
        }  # leaves out the path, because the model's digest identifies the model
        model = {"model": self.start.digest} if self.start else {}
        return {
            "embedder": self.kind,
            "options": options,
            **EMBEDDERS.source(self.kind),
            **model,
            **deciding(*embedder.packages),
        }

    def made(self, done: Done | None) -> Embedder:
        """Returns the embedder, with its model from the finished stages `done`, or without one if `done` is None."""
        pretrained = self.start.made(done) if self.start and done is not None else None
        return embedder_of(self.kind, dict(self.options), self.seed, pretrained)


@dataclass(frozen=True)
class Counted:
    """Result of `CountEnough`: the number of counted documents."""

    documents: int
    """Number of counted documents. Counting stops at the required number, so the pool may have more."""


@dataclass(frozen=True, eq=False)
class CountEnough(Stage[Counted]):
    """Reads a pool until enough documents are counted, and fails if the pool has fewer."""

    kind = "enough"
    takes = ONE_CPU

    name: str
    texts: PoolTexts
    wanted: int
    """Number of documents that the pool must have."""

    def what(self) -> Mapping[str, Any]:
        return {"texts": self.texts.what(), "wanted": self.wanted}

    def run(self, folder: Path, done: Done) -> Outcome[Counted]:
        """Counts documents of the pool until the required number is reached.

        Raises:
          DataError: the pool has fewer documents, or too many of its records are unreadable.
        """
        source = self.texts.source(done)
        pool = Pool(source.manifest, source.corpus, guards(source.corpus, source.measured, []).sieve)
        found = sum(1 for _ in islice(pool, self.wanted))
        if found < self.wanted:
            source.check(pool.tally)
            check_enough(self.wanted, found)
        return Outcome(Counted(found))


@dataclass(frozen=True)
class LearntEmbedder:
    """Result of `LearnEmbedder`: metrics of the trained embedder."""

    figures: dict[str, float]
    """Metrics keyed by name, such as the number of training texts. Other metrics depend on the kind of embedder."""


@dataclass(frozen=True, eq=False)
class LearnEmbedder(Stage[LearntEmbedder]):
    """Trains an embedder on samples of the texts that it will compare."""

    kind = "embedder"
    version = 2  # since version 2, VAMPIRE uses background frequencies and draws different random numbers

    name: str
    embedding: Embedding
    texts: tuple[PoolTexts | StageTexts, ...]
    resources: ResourcesConfig

    def what(self) -> Mapping[str, Any]:
        return {**self.embedding.what(), "texts": [texts.what() for texts in self.texts]}

    def run(self, folder: Path, done: Done) -> Outcome[LearntEmbedder]:
        from adapt.embed.cluster_embedding import learn_embedder

        connect(self.resources)
        sources = [texts.source(done) for texts in self.texts]
        figures = learn_embedder(self.embedding.made(done), sources, folder, self.resources)
        return Outcome(LearntEmbedder(figures))


@dataclass(frozen=True)
class Embedded:
    """Result of `Embed`. The files `vectors-*.parquet` contain the vectors (`adapt.embed.vector_files`)."""

    documents: int
    dimension: int
    unknown_share: float
    """Share of tokens that the embedder does not know. For embedders that count words, share of texts that contain no
    known word."""
    space: str
    """Name of the vector space. Only vectors of the same space can be compared."""


@dataclass(frozen=True, eq=False)
class Embed(Stage[Embedded]):
    """Computes the vectors of texts."""

    kind = "embed"
    version = 2  # since version 2, the id of a text is the number of its record

    name: str
    embedding: Embedding
    learnt: LearnEmbedder | None
    """Stage that trains the embedder. None if the embedder does not learn."""
    texts: PoolTexts | StageTexts
    resources: ResourcesConfig
    stored: "StoredType" = "float16"

    def what(self) -> Mapping[str, Any]:
        return {**self.embedding.what(), "texts": self.texts.what(), "stored": self.stored}

    @property
    def space(self) -> str:
        """Name of the vector space. Only vectors of the same space can be compared."""
        made_by = {name: stage.key for name, stage in self.inputs.items() if name.startswith(("embedding.", "learnt"))}
        identity = canonical({**self.embedding.what(), "made_by": made_by})
        return f"{self.embedding.kind}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def run(self, folder: Path, done: Done) -> Outcome[Embedded]:
        """Embeds the texts on the cluster, resuming an interrupted run."""
        from adapt.embed.cluster_embedding import embed_texts

        connect(self.resources)
        learnt = done[self.learnt].path if self.learnt else None
        embedder, source = self.embedding.made(done), self.texts.source(done)
        counts = embed_texts(source, embedder, learnt, folder, self.resources, self.stored)
        return Outcome(Embedded(counts.documents, counts.dimension, counts.unknown_share, self.space))


@dataclass(frozen=True)
class Indexed:
    """Result of `BuildIndex`: size and kind of the index, which `adapt.index.vector_index` can search."""

    vectors: int
    dimension: int
    parts: int
    index: str
    """Kind of the index: flat, ivf, ivf_pq or hnsw."""
    lists: int
    space: str
    """Name of the vector space."""


@dataclass(frozen=True, eq=False)
class BuildIndex(Stage[Indexed]):
    """Builds an index of the vectors of texts."""

    kind = "index"
    version = 2  # since version 2, the mean of all vectors is subtracted from each vector

    name: str
    vectors: Embed
    index: "IndexKind | str"
    """Kind of the index. `auto` chooses a kind by size, memory and queries (`adapt.index.index_files`)."""
    memory_gib: float
    """Memory that a machine may use for the index [GiB], one of the values by which `auto` chooses."""
    queries: int
    """Approximate number of queries, one of the values by which `auto` chooses."""
    resources: ResourcesConfig

    def what(self) -> Mapping[str, Any]:
        return {
            "index": self.index,
            "memory_gib": self.memory_gib,
            "queries": self.queries,
            **deciding("faiss-cpu"),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Indexed]:
        connect(self.resources)
        embedded = done[self.vectors]
        facts = build_on_cluster(
            embedded.path,
            folder,
            embedded.result.space,
            embedded.result.dimension,
            memory_bytes=int(self.memory_gib * 2**30),
            queries=self.queries,
            kind=self.index,
        )
        return Outcome(
            Indexed(facts.vectors, facts.dimension, len(facts.parts), facts.kind, facts.lists, facts.embedder)
        )


@dataclass(frozen=True)
class VectorStages:
    """The stages that embed the pool and the target in the same vector space."""

    enough: CountEnough | None
    """Stage that checks that the pool has enough documents. It runs first, because it is fast. None if `per_example`,
    the number of neighbours per target text, is not set."""
    pool: BuildIndex
    target: Embed | None
    """Stage that embeds the target. None if no selection reads the target's vectors."""

    def made(self, done: Done) -> "Vectors":
        """Returns the folders of the vectors of pool and target, and the name of their vector space."""
        target = done[self.target].path if self.target else None
        return Vectors(done[self.pool].path, target, self.pool.vectors.space)

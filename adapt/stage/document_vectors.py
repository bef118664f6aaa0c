"""Stages `enough`, `embedder`, `embed` and `index`: vectors of documents, as selections read them.

`enough` counts whether a pool has as many documents as neighbours are needed. `embedder` is what an embedder learns
from the texts. `embed` computes the vectors. `index` makes them searchable.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import ModelConfig, ResourcesConfig
from adapt.embed.embedder import EMBEDDERS, Embedder, embedder_of
from adapt.model.start import Start
from adapt.ray.runtime import connect
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.key import canonical, deciding
from adapt.select import TEXTS_FILE
from adapt.select.selection import Vectors
from adapt.select.vector_search import check_enough
from adapt.stage.context import Context, located
from adapt.stage.prepare_text import Prepared
from adapt.stage.text_sources import Files, TaskTexts, without

if TYPE_CHECKING:
    from adapt.embed.cluster_embedding import StoredType
    from adapt.embed.text_chunks import PoolSource, TextSource
    from adapt.index.index_kinds import IndexKind


@dataclass(frozen=True)
class PoolTexts:
    """The text of a pool, cleaned, without what is held out of it."""

    files: Files
    unseen: TaskTexts | None = None
    """Texts that it must not hold."""
    measured: tuple[Stage[Prepared], ...] = ()
    """Text that it leaves out, because it is measured."""

    def what(self) -> dict[str, Any]:
        """How it is read."""
        return self.files.what()

    def source(self, done: Done) -> "PoolSource":
        """Where tasks read it."""
        from adapt.embed.text_chunks import PoolSource

        corpus, measured = without(self.files.corpus, self.unseen, done), [done[text].path for text in self.measured]
        return PoolSource(self.files.manifest, corpus, tuple(measured))


@dataclass(frozen=True)
class StageTexts:
    """The texts that a stage wrote to `texts.jsonl`, with their ids."""

    stage: Stage[Any]

    def what(self) -> dict[str, Any]:
        """Its key says all."""
        return {}

    def source(self, done: Done) -> "TextSource":
        """Where tasks read them."""
        from adapt.embed.text_chunks import LinesSource

        return LinesSource(done[self.stage].path / TEXTS_FILE)


@dataclass(frozen=True)
class Embedding:
    """An embedder with its options."""

    kind: str
    options: Mapping[str, Any]
    seed: int
    start: Start | None
    """The model that it reads."""

    @classmethod
    def of(cls, context: Context, kind: str, options: Mapping[str, Any]) -> "Embedding":
        """The embedder of a job. Without a `path` of its own, it reads the model that the context begins with.

        Raises:
            ConfigError: there is none of this name, an option is wrong, or a package is missing.
            ModelError: there is no such model.
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
        """Whether it must learn before it can embed."""
        return EMBEDDERS.load(self.kind).learns

    def what(self) -> dict[str, Any]:
        """What decides its vectors. A user's own enters with its source."""
        embedder = self.made(None)
        options = {
            name: value for name, value in embedder.what().items() if name != "path"
        }  # the model's digest says it
        model = {"model": self.start.digest} if self.start else {}
        return {
            "embedder": self.kind,
            "options": options,
            **EMBEDDERS.source(self.kind),
            **model,
            **deciding(*embedder.packages),
        }

    def made(self, done: Done | None) -> Embedder:
        """The embedder; with its model, where the stages that make it are done."""
        pretrained = self.start.made(done) if self.start and done is not None else None
        return embedder_of(self.kind, dict(self.options), self.seed, pretrained)


@dataclass(frozen=True)
class Counted:
    """What was found."""

    documents: int
    """As many as were asked for: nobody has looked whether there are more."""


@dataclass(frozen=True, eq=False)
class CountEnough(Stage[Counted]):
    """Reads a pool until it has seen enough documents, which takes a moment, or to its end, which refuses it."""

    kind = "enough"
    takes = ONE_CPU

    name: str
    texts: PoolTexts
    wanted: int
    """Documents."""

    def what(self) -> Mapping[str, Any]:
        """How the pool is read, and how many documents are enough."""
        return {"texts": self.texts.what(), "wanted": self.wanted}

    def run(self, folder: Path, done: Done) -> Outcome[Counted]:
        """Reads.

        Raises:
            DataError: there are fewer documents, or as `adapt.embed.text_chunks.PoolSource.check`.
        """
        from adapt.select.pool import Pool, guards

        source = self.texts.source(done)
        pool = Pool(source.manifest, source.corpus, guards(source.corpus, source.measured, []).sieve)
        found = sum(1 for _ in islice(pool, self.wanted))
        if found < self.wanted:
            source.check(pool.tally)
            check_enough(self.wanted, found)
        return Outcome(Counted(found))


@dataclass(frozen=True)
class LearntEmbedder:
    """How well an embedder has learnt."""

    figures: dict[str, float]
    """Texts that were learnt from, words that are known; of `vampire`, epochs, and the topics' NPMI."""


@dataclass(frozen=True, eq=False)
class LearnEmbedder(Stage[LearntEmbedder]):
    """An embedder, learnt from samples of the texts that it will compare."""

    kind = "embedder"
    version = 2  # VAMPIRE's background counts, and its steps draw otherwise

    name: str
    embedding: Embedding
    texts: tuple[PoolTexts | StageTexts, ...]
    resources: ResourcesConfig

    def what(self) -> Mapping[str, Any]:
        """The embedder, and how the texts are read."""
        return {**self.embedding.what(), "texts": [texts.what() for texts in self.texts]}

    def run(self, folder: Path, done: Done) -> Outcome[LearntEmbedder]:
        """Learns in one task of the cluster."""
        from adapt.embed.learn import learn_embedder

        connect(self.resources)
        sources = [texts.source(done) for texts in self.texts]
        figures = learn_embedder(self.embedding.made(done), sources, folder, self.resources)
        return Outcome(LearntEmbedder(figures))


@dataclass(frozen=True)
class Embedded:
    """What was embedded. The vectors are in `vectors-*.parquet`; see `adapt.embed.vector_files`."""

    documents: int
    dimension: int
    unknown_share: float
    """Share of the tokens (of texts, where words are counted) that the embedder does not know."""
    space: str
    """What made the vectors: those of the same space can be compared."""


@dataclass(frozen=True, eq=False)
class Embed(Stage[Embedded]):
    """The vectors of some texts."""

    kind = "embed"
    version = 2  # ids count records

    name: str
    embedding: Embedding
    learnt: LearnEmbedder | None
    """What the embedder has learnt, where it learns."""
    texts: PoolTexts | StageTexts
    resources: ResourcesConfig
    stored: "StoredType" = "float16"

    def what(self) -> Mapping[str, Any]:
        """The embedder, how the texts are read, and the type of the numbers."""
        return {**self.embedding.what(), "texts": self.texts.what(), "stored": self.stored}

    @property
    def space(self) -> str:
        """See `Embedded`."""
        made_by = {name: stage.key for name, stage in self.inputs.items() if name.startswith(("embedding.", "learnt"))}
        identity = canonical({**self.embedding.what(), "made_by": made_by})
        return f"{self.embedding.kind}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def run(self, folder: Path, done: Done) -> Outcome[Embedded]:
        """Embeds on the cluster; goes on where a run that died has ended."""
        from adapt.embed.cluster_embedding import embed_texts

        connect(self.resources)
        learnt = done[self.learnt].path if self.learnt else None
        embedder, source = self.embedding.made(done), self.texts.source(done)
        found = embed_texts(source, embedder, learnt, folder, self.resources, self.stored)
        return Outcome(Embedded(found.documents, found.dimension, found.unknown_share, self.space))


@dataclass(frozen=True)
class Indexed:
    """What was built; see `adapt.index.vector_index` for how it is asked."""

    vectors: int
    dimension: int
    parts: int
    index: str
    """The kind: flat, ivf, ivf_pq or hnsw."""
    lists: int
    space: str
    """What made the vectors."""


@dataclass(frozen=True, eq=False)
class BuildIndex(Stage[Indexed]):
    """An index of the vectors of some texts."""

    kind = "index"
    version = 2  # the mean of the vectors is taken from each

    name: str
    vectors: Embed
    index: "IndexKind | str"
    """Its kind; `auto` chooses by size and memory (`adapt.index.index_kinds`)."""
    memory_gib: float
    """What a machine may use for it [GiB]; `auto` heeds it."""
    queries: int
    """How many will be asked, about; `auto` heeds it."""
    resources: ResourcesConfig

    def what(self) -> Mapping[str, Any]:
        """What decides its kind, and the library that builds it."""
        return {
            "index": self.index,
            "memory_gib": self.memory_gib,
            "queries": self.queries,
            **deciding("faiss-cpu"),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Indexed]:
        """Builds the parts on the cluster, a task each."""
        from adapt.embed.vector_files import build_on_cluster

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
    """Vectors of pool and target in one space."""

    enough: CountEnough | None
    """Comes first, since it takes a moment; None where the budget says nothing of neighbours."""
    pool: BuildIndex
    target: Embed | None
    """None where no selection reads those of the target."""

    def made(self, done: Done) -> "Vectors":
        """Where they are."""
        target = done[self.target].path if self.target else None
        return Vectors(done[self.pool].path, target, self.pool.vectors.space)

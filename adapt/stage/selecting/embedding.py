"""What is embedded, and by what: the inputs of the stages `embedder` and `embed`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adapt.config import ModelConfig
from adapt.embed.base import Embedder
from adapt.embed.table import EMBEDDERS, embedder_class, embedder_of
from adapt.model.start import Start
from adapt.plugin import source_digest
from adapt.runner import Done, Stage
from adapt.runner.packages import deciding
from adapt.select import TEXTS_FILE
from adapt.stage.context import Context, located
from adapt.stage.text.listing import Files
from adapt.stage.text.prepare import Prepared
from adapt.stage.text.reading import without
from adapt.stage.text.task_texts import TaskTexts

if TYPE_CHECKING:
    from adapt.embed.sources import PoolSource, TextSource


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
        from adapt.embed.sources import PoolSource

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
        from adapt.embed.sources import LinesSource

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
        return embedder_class(self.kind).learns

    def what(self) -> dict[str, Any]:
        """What decides its vectors. A user's own enters with its source."""
        embedder = self.made(None)
        options = {
            name: value for name, value in embedder.what().items() if name != "path"
        }  # the model's digest says it
        own = {} if self.kind in EMBEDDERS else {"source": source_digest(type(embedder))}
        model = {"model": self.start.digest} if self.start else {}
        return {"embedder": self.kind, "options": options, **own, **model, **deciding(*embedder.packages)}

    def made(self, done: Done | None) -> Embedder:
        """The embedder; with its model, where the stages that make it are done."""
        pretrained = self.start.made(done) if self.start and done is not None else None
        return embedder_of(self.kind, dict(self.options), self.seed, pretrained)

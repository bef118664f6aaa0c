"""The stages that make text into token shards: manifest, dedup, prepare."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.chain import Outcome, Stage
from adapt.chain.files import write_atomically
from adapt.config import Config, CorpusConfig
from adapt.corpus.form import Form
from adapt.corpus.identity import dedup_identity, reading_identity
from adapt.corpus.manifest import Manifest, build_manifest
from adapt.corpus.sources import sources_of
from adapt.preflight import check_memory, check_weights
from adapt.stages.base import Base, Inputs

if TYPE_CHECKING:
    from adapt.corpus.online import Online


REPLAY = "(replay)"
"""A training's input: the general text that is mixed in. No source has this name."""

FILES: dict[str, Any] = {"source": "files", "sources": [], "dataset": None, "id_field": None, "streaming": False}
"""What a second corpus, which is always given as paths, does not take from the first."""


class Corpora(Base):
    """Text of the domain, general text, and replayed text."""

    def domain(self) -> tuple[Stage, dict[str, Stage]]:
        """The domain's text as one corpus, to measure on, and its sources by name, to train on."""
        name, sources = self.config.name, sources_of(self.config.corpus)
        dedup = self.deduplicated(sources)
        if not self.config.corpus.sources:
            corpus = self.prepared(self.config.corpus, name, dedup)
            return corpus, {"domain": corpus}
        stages = {
            source: self.prepared(corpus, f"{name}-{source}", dedup, place)
            for place, (source, corpus) in enumerate(sources)
        }
        return self.gathered(stages), stages

    def gathered(self, sources: Mapping[str, Stage]) -> Stage:
        """Several prepared corpora as one."""
        return Stage("prepare", self.config.name, {"sources": list(sources)}, _gather, sources, needs={})

    def prepared(self, corpus: CorpusConfig, name: str, dedup: Stage | None = None, place: int = 0) -> Stage:
        """A corpus as token shards. Its first input, the manifest, is what ties it to the content of the files.

        Args:
            corpus: of one source.
            name: for the folders.
            dedup: says which documents to leave out.
            place: of this corpus among the sources that were deduplicated together.
        """
        manifest, listed = self._listed(corpus, name)
        if corpus.streaming:
            self._streamed = manifest
        identity = {
            "corpus": {**reading_identity(corpus, self._digests), "heldout_fraction": corpus.heldout_fraction},
            **({"streaming": True} if corpus.streaming else {}),
            **({"place": place} if dedup else {}),
            **self._tokenizer_identity(),
            **self._form_identity(),
        }
        return Stage(
            "prepare",
            name,
            identity,
            lambda folder, inputs: self._prepare(manifest, corpus, folder, inputs, place),
            {"manifest": listed, **({"dedup": dedup} if dedup else {})},
        )

    def deduplicated(self, sources: Sequence[tuple[str, CorpusConfig]]) -> Stage | None:
        """Which documents of some sources are copies of another in any of them; None where all may stay.

        Args:
            sources: names and corpora, in the order of `adapt.corpus.sources.sources_of`.
        """
        corpus = self.config.corpus
        if corpus.deduplicate == "none":
            return None
        name = self.config.name
        listings = [self._listed(each, f"{name}-{source}" if source else name) for source, each in sources]
        identity = {
            "sources": [reading_identity(each, self._digests) for _, each in sources],
            "entity_field": Form.of(self.config.objective).entity_field,
            **dedup_identity(corpus),
        }
        files = [(source, manifest, each) for (source, each), (manifest, _) in zip(sources, listings, strict=True)]
        inputs = {f"manifest-{place:03d}": listed for place, (_, listed) in enumerate(listings)}
        return Stage("dedup", name, identity, lambda folder, _: self._deduplicate(files, folder), inputs)

    def _listed(self, corpus: CorpusConfig, name: str) -> tuple[Manifest, Stage]:
        """A corpus's files and the stage that records them; looked at once, for all stages that read them."""
        if (key := (name, repr(corpus))) not in self._listings:
            manifest = build_manifest(corpus, self._digests)
            stage = Stage(
                "manifest",
                name,
                {"digest": manifest.digest},
                lambda folder, _: _list(manifest, corpus, folder),
                needs={},
            )
            self._listings[key] = manifest, stage
        return self._listings[key]

    def _replayed(self) -> Stage | None:
        """The general text that is mixed in."""
        if not self.config.mixture.replay_paths:
            return None
        return self.prepared(replayed_corpus(self.config), f"{self.config.name}-replay")

    def _deduplicate(self, files: list[tuple[str, Manifest, CorpusConfig]], folder: Path) -> Outcome:
        from adapt.corpus.dedup import Alike, deduplicate

        for _, manifest, corpus in files:
            self._check_and_connect(manifest, corpus)
        entity_field = Form.of(self.config.objective).entity_field
        return Outcome(deduplicate(files, Alike.of(self.config.corpus), folder, entity_field))

    def _prepare(self, manifest: Manifest, corpus: CorpusConfig, folder: Path, inputs: Inputs, place: int) -> Outcome:
        from adapt.corpus.dedup import duplicates_file
        from adapt.corpus.prepare import prepare
        from adapt.corpus.sample import sample_heldout

        self._check_and_connect(manifest, corpus)
        duplicates = inputs["dedup"].path / duplicates_file(place) if "dedup" in inputs else None
        if corpus.streaming:
            return Outcome(sample_heldout(self._online(manifest, folder, duplicates), folder))
        form = Form.of(self.config.objective)
        return Outcome(prepare(manifest, corpus, self.pretrained, folder, form, duplicates))

    def _online(self, manifest: Manifest, folder: Path, duplicates: Path | None) -> "Online":
        """The corpus as it is streamed."""
        from adapt.corpus.online import Online
        from adapt.corpus.window import Cut

        config, training = self.config, self.config.training
        cut = Cut(training.sequence_length, training.global_batch_size, config.seed)
        return Online.of(manifest, config.corpus, self.pretrained, Form.of(config.objective), cut, folder, duplicates)

    def _check_and_connect(self, manifest: Manifest, corpus: CorpusConfig) -> None:
        """All that can be checked before a corpus is read."""
        from adapt.corpus.readable import check_readable
        from adapt.runtime import address_of, await_resources, connect

        form = Form.of(self.config.objective)
        check_readable(manifest, corpus, form.entity_field if self._is_domain(corpus) else None)
        check_weights(self.pretrained.model)
        connect(self.config.resources)
        if address_of(self.config.resources) is None:
            await_resources(self.config.resources)  # for the training: this machine will not grow meanwhile
        check_memory(self.config, self.pretrained.model)

    def _is_domain(self, corpus: CorpusConfig) -> bool:
        """Whether a corpus is one of the domain's sources, and not general text, which need not have entities."""
        return any(corpus == each for _, each in sources_of(self.config.corpus))


def general_corpus(config: Config) -> CorpusConfig:
    """The general corpus is only measured on, so all of it is held out."""
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
    """All of it is trained on."""
    mixture = config.mixture
    return replace(
        config.corpus,
        **FILES,
        paths=mixture.replay_paths,
        text_field=mixture.replay_text_field,
        heldout_fraction=0.0,
    )


def _gather(folder: Path, inputs: Inputs) -> Outcome:
    from adapt.corpus.gather import gather

    return Outcome(gather(list(inputs.values()), folder))


def _list(manifest: Manifest, corpus: CorpusConfig, folder: Path) -> Outcome:
    write_atomically(folder / "manifest.json", manifest.to_json())
    sizes = [part.size for part in manifest.parts]
    empty = sizes.count(0) if corpus.source == "files" else 0
    return Outcome({"parts": len(sizes), "bytes": sum(sizes), "empty_files": empty})

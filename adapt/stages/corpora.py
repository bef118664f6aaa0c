"""The stages that make text into token shards: manifest, dedup, prepare."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.form import Form
from adapt.corpus.identity import dedup_identity, reading_identity
from adapt.corpus.manifest import Manifest, build_manifest
from adapt.corpus.roles import general_corpus, replayed_corpus, trained_corpora
from adapt.corpus.shared import check_heldout, shared_with
from adapt.corpus.sources import sources_of
from adapt.preflight import check_memory, check_weights
from adapt.runner import Outcome, Stage
from adapt.runner.files import write_atomically
from adapt.select import TEXTS_FILE
from adapt.stages.base import Base, Inputs

if TYPE_CHECKING:
    from adapt.corpus.online import Online


REPLAY = "(replay)"
"""A training's input: the general text that is mixed in. No source has this name."""
GENERAL = "(general)"
"""What the general text that is measured is called among sources."""
MEASURED = "measured "
"""Beginning of the names of a prepared corpus's inputs: text that is measured, which it leaves out."""

Listed = list[tuple[str, Manifest, CorpusConfig]]
NOTHING: Mapping[str, Stage] = {}


class Corpora(Base):
    """Text of the domain, general text, and replayed text."""

    def domain(self) -> tuple[Stage, dict[str, Stage]]:
        """The domain's text as one corpus, to measure on, and its sources by name, to train on."""
        name, sources = self.config.name, sources_of(self.config.corpus)
        dedup, measured = self.deduplicated(sources, self._beside()), self.measured()
        if not self.config.corpus.sources:
            corpus = self.prepared(self.config.corpus, name, dedup, measured=measured)
            return corpus, {"domain": corpus}
        stages = {
            source: self.prepared(corpus, f"{name}-{source}", dedup, place, measured)
            for place, (source, corpus) in enumerate(sources)
        }
        return self.gathered(stages), stages

    def gathered(self, sources: Mapping[str, Stage]) -> Stage:
        """Several prepared corpora as one."""
        return Stage("prepare", self.config.name, {"sources": list(sources)}, _gather, sources, needs={})

    def prepared(
        self,
        corpus: CorpusConfig,
        name: str,
        dedup: Stage | None = None,
        place: int = 0,
        measured: Mapping[str, Stage] = NOTHING,
    ) -> Stage:
        """A corpus as token shards. Its first input, the manifest, is what ties it to the content of the files.

        Args:
            corpus: of one source.
            name: for the folders.
            dedup: says which documents to leave out.
            place: of this corpus among the sources that were deduplicated together.
            measured: prepared text that it leaves out, because it is measured.
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
            {"manifest": listed, **({"dedup": dedup} if dedup else {}), **measured},
        )

    def general(self) -> Stage | None:
        """General text to measure on, if there is any.

        Raises:
            ConfigError: it is the domain's text, or nothing of what is trained on too is held out.
        """
        config = self.whole
        if not config.evaluation.general_paths:
            return None
        corpus, name = general_corpus(config), f"{config.name}-general"
        general, _ = self._listed(corpus, name)
        trained = {
            field: [self._listed(each, name)[0] for name, each in found]
            for field, found in trained_corpora(config).items()
        }
        if not (field := shared_with(general, trained, config.corpus.heldout_fraction)):
            return self.prepared(corpus, name)
        stage = self.prepared(replace(corpus, heldout_fraction=config.corpus.heldout_fraction), name)

        def run(folder: Path, inputs: Inputs) -> Outcome:
            outcome = stage.run(folder, inputs)
            check_heldout(outcome.metrics, field)
            return outcome

        return replace(stage, run=run)

    def measured(self) -> dict[str, Stage]:
        """What every corpus that is trained on leaves out, besides the held-out share that all have in common."""
        general = self.general()
        return {f"{MEASURED}general": general} if general else {}

    def _beside(self, replay: bool = True) -> list[tuple[str, CorpusConfig]]:
        """The text of which a corpus must hold no near copy on the other side, where those are looked for."""
        config = self.whole
        if config.corpus.deduplicate != "near":
            return []
        found = []
        if general := self.general():
            share = general.what["corpus"]["heldout_fraction"]
            found.append((GENERAL, replace(general_corpus(config), heldout_fraction=share)))
        if replay and config.mixture.replay_paths:
            found.append((REPLAY, replayed_corpus(config)))
        return found

    def deduplicated(
        self,
        sources: Sequence[tuple[str, CorpusConfig]],
        before: Sequence[tuple[str, CorpusConfig]] = (),
        unseen: Stage | None = None,
    ) -> Stage | None:
        """Which documents of some sources are copies of another in any of them; None where all may stay.

        Args:
            sources: names and corpora, in the order of `adapt.corpus.sources.sources_of`.
            before: text that stays as it is; see `adapt.corpus.clusters.kept_apart`.
            unseen: texts that the sources must not hold.
        """
        corpus = self.config.corpus
        if corpus.deduplicate == "none":
            return None
        name = self.config.name
        everyone = [*before, *sources]
        listings = [self._listed(each, f"{name}-{source}" if source else name) for source, each in everyone]
        identity = {
            "sources": [reading_identity(each, self._digests) for _, each in sources],
            "entity_field": Form.of(self.config.objective).entity_field,
            **dedup_identity(corpus),
        }
        if before:
            identity["before"] = [reading_identity(each, self._digests) for _, each in before]
            identity["heldout_fractions"] = [each.heldout_fraction for _, each in everyone]
        files = [(source, manifest, each) for (source, each), (manifest, _) in zip(everyone, listings, strict=True)]
        inputs = {f"manifest-{place:03d}": listed for place, (_, listed) in enumerate(listings)}

        def run(folder: Path, done: Inputs) -> Outcome:
            read = [(source, manifest, without(each, done)) for source, manifest, each in files[len(before) :]]
            return self._deduplicate(read, files[: len(before)], folder)

        return Stage("dedup", name, identity, run, {**inputs, **({"unseen": unseen} if unseen else {})})

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
        corpus, beside = replayed_corpus(self.config), self._beside(replay=False)
        dedup = self.deduplicated([(REPLAY, corpus)], beside) if beside else None
        return self.prepared(corpus, f"{self.config.name}-replay", dedup, measured=self.measured())

    def _deduplicate(self, files: Listed, before: Listed, folder: Path) -> Outcome:
        from adapt.corpus.dedup import Alike, deduplicate

        for _, manifest, corpus in (*before, *files):
            self._check_and_connect(manifest, corpus)
        entity_field = Form.of(self.config.objective).entity_field
        alike = Alike.of(self.config.corpus)
        return Outcome(deduplicate(files, alike, folder, entity_field, before))

    def _prepare(self, manifest: Manifest, corpus: CorpusConfig, folder: Path, inputs: Inputs, place: int) -> Outcome:
        from adapt.corpus.dedup import duplicates_file
        from adapt.corpus.prepare import prepare
        from adapt.corpus.sample import sample_heldout

        self._check_and_connect(manifest, corpus)
        duplicates = inputs["dedup"].path / duplicates_file(place) if "dedup" in inputs else None
        measured = [record.path for name, record in inputs.items() if name.startswith(MEASURED)]
        if corpus.streaming:
            return Outcome(sample_heldout(self._online(manifest, folder, duplicates, measured), folder))
        form = Form.of(self.config.objective)
        return Outcome(prepare(manifest, corpus, self.pretrained, folder, form, duplicates, measured))

    def _online(
        self, manifest: Manifest, folder: Path, duplicates: Path | None, measured: Sequence[Path] = ()
    ) -> "Online":
        """The corpus as it is streamed."""
        from adapt.corpus.online import Online
        from adapt.corpus.window import Cut

        config, training = self.config, self.config.training
        cut = Cut(training.sequence_length, training.global_batch_size, config.seed)
        form = Form.of(config.objective)
        return Online.of(manifest, config.corpus, self.pretrained, form, cut, folder, duplicates, measured)

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


def without(corpus: CorpusConfig, inputs: Inputs) -> CorpusConfig:
    """The same corpus with none of the texts that must not be seen, which the input `unseen` holds."""
    if "unseen" not in inputs:
        return corpus
    file = str(inputs["unseen"].path / TEXTS_FILE)
    return replace(corpus, decontaminate=[*corpus.decontaminate, EvaluationSet("dev-and-test", file)])


def _gather(folder: Path, inputs: Inputs) -> Outcome:
    from adapt.corpus.gather import gather

    return Outcome(gather(list(inputs.values()), folder))


def _list(manifest: Manifest, corpus: CorpusConfig, folder: Path) -> Outcome:
    write_atomically(folder / "manifest.json", manifest.to_json())
    sizes = [part.size for part in manifest.parts]
    empty = sizes.count(0) if corpus.source == "files" else 0
    return Outcome({"parts": len(sizes), "bytes": sum(sizes), "empty_files": empty})

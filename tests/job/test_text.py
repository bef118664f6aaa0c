"""Tests which columns an objective needs in prepared text, and how general text is measured, replayed or left out."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, CorpusConfig, ObjectiveConfig, SourceConfig
from adapt.job.training_jobs import dapt_stages
from adapt.runner import Stage
from adapt.stage.context import Context
from adapt.stage.export_model import Export
from adapt.stage.prepare_text import Prepare
from adapt.support.errors import ConfigError
from tests.job.worlds import changed, dapt_world, differing

PREPARED = {"domain", "general", "before", "training", "after", "export"}
TRAINED = {"training", "after", "export"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return dapt_world(tmp_path, monkeypatch)


def built(config: Config) -> Export:
    return dapt_stages(Context.of(config))


def keys(config: Config) -> dict[str, str]:
    export = built(config)
    return {"export": export.key, **{name: stage.key for name, stage in export.inputs.items()}}


# --- objectives


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ({"kind": "mlm", "mask_fraction": 0.3}, TRAINED),
        ({"kind": "whole_word"}, PREPARED),
        ({"kind": "span"}, PREPARED),
        ({"kind": "entity", "entity_field": "names"}, PREPARED),
        ({"kind": "causal"}, PREPARED),
    ],
)
def test_an_objective_that_needs_other_columns_prepares_again(
    config: Config, objective: dict[str, Any], expected: set[str]
) -> None:
    assert differing(keys(config), keys(replace(config, objective=ObjectiveConfig(**objective)))) == expected


def test_objectives_on_words_share_their_corpus(config: Config) -> None:
    words, spans = (keys(changed(config, "objective.kind", kind)) for kind in ("whole_word", "span"))
    assert differing(words, spans) == TRAINED


def test_the_entity_field_and_the_source_of_a_tagger_are_part_of_the_key(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "names_of_genes.py"
    tagger = "from adapt.corpus.entities import Tagger\nclass Find(Tagger):\n    def entities(self, text): return "
    source.write_text(f"{tagger}[]\n")

    def found(**given: str) -> dict[str, str]:
        return keys(replace(config, objective=ObjectiveConfig(kind="entity", **given)))

    assert differing(found(entity_field="a"), found(entity_field="b")) == PREPARED
    before = found(tagger="names_of_genes:Find")
    assert differing(before, found(tagger="names_of_genes:Find")) == set()
    source.write_text(f"{tagger}[(0, 1)]\n")
    assert differing(before, found(tagger="names_of_genes:Find")) == PREPARED
    with pytest.raises(ConfigError, match="names_of_nobody cannot be imported") as caught:
        found(tagger="names_of_nobody:Find")
    assert "PYTHONPATH" in caught.value.fix


def test_a_block_that_loses_positions_of_entities_is_refused(config: Config) -> None:
    mended = changed(config, "corpus.cleaning", ["fix_unicode"])
    with pytest.raises(ConfigError, match=r"the block fix_unicode of corpus\.cleaning"):
        built(replace(mended, objective=ObjectiveConfig(kind="entity", entity_field="names")))


# --- general text


def prepared(stage: Stage[Any] | None) -> Prepare:
    assert isinstance(stage, Prepare)
    return stage


def heldout_of_general(config: Config) -> float:
    return prepared(built(config).general).files.corpus.heldout_fraction


def replayed(config: Config, *paths: str) -> Config:
    return changed(config, "mixture.replay_paths", list(paths))


def test_general_text_is_measured_whole_unless_its_files_are_trained_on(config: Config, tmp_path: Path) -> None:
    """If general text is trained on, only its held-out share is measured, and training runs leave this share out."""
    (tmp_path / "data" / "other.jsonl").write_text('{"text": "another"}\n')
    shutil.copy("data/general.jsonl", tmp_path / "copy.jsonl")
    assert heldout_of_general(config) == 1
    assert heldout_of_general(replayed(config, "data/other.jsonl")) == 1
    for paths in (["data/general.jsonl"], ["data/other.jsonl", "copy.jsonl"]):  # files are identified by their content
        shared = replayed(config, *paths)
        assert heldout_of_general(shared) == 0.01
        export = built(shared)
        replay = prepared(export.training.replay)
        assert replay.measured == (export.general,)
        assert replay.what()["corpus"]["heldout_fraction"] == 0.01
        assert prepared(export.general).what()["corpus"]["heldout_fraction"] == 0.01
    sources = [SourceConfig(name, paths=f"data/{name}.jsonl") for name in ("a", "general")]
    assert heldout_of_general(replace(config, corpus=CorpusConfig(sources=sources))) == 0.01


def test_duplicates_are_found_before_the_corpus_is_prepared(config: Config) -> None:
    domain = prepared(built(changed(config, "corpus.deduplicate", "near")).domain)
    assert {stage.kind for stage in domain.inputs.values()} == {"manifest", "dedup", "prepare"}
    assert domain.dedup
    general, corpus = domain.dedup.inputs.values()
    assert {general, corpus} == {domain.files.listing, prepared(domain.measured[0]).files.listing}
    assert [files.listing for files in domain.dedup.before] == [prepared(domain.measured[0]).files.listing]


def test_near_copies_of_measured_text_are_removed_from_all_training_text(config: Config) -> None:
    """Checks that replayed text also has no near copies of the domain's held-out text."""
    near = replayed(changed(config, "corpus.deduplicate", "near"), "data/b.jsonl")
    training = built(near).training
    domain, replay = prepared(training.corpora["domain"]), prepared(training.replay)
    general = prepared(domain.measured[0]).files.listing
    assert domain.dedup
    assert replay.dedup
    assert [files.listing for files in domain.dedup.before] == [general, replay.files.listing]
    assert [files.listing for files in domain.dedup.sources] == [domain.files.listing]
    assert [files.listing for files in replay.dedup.before] == [general]
    assert [files.listing for files in replay.dedup.sources] == [replay.files.listing]
    held = built(changed(near, "corpus.heldout_fraction", 0.1)).training.corpora["domain"]
    assert prepared(held).dedup != domain.dedup

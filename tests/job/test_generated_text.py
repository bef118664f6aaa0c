"""Tests the stages that generate text: what their keys depend on, refused settings, and copies of measured text."""

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import build_chain
from adapt.config import Config, GenerateConfig, MixtureConfig, ObjectiveConfig, SourceConfig, SynthesizeConfig
from adapt.generate import generate_blocks
from adapt.generate.generate_blocks import FilterCounts
from adapt.generate.rewriting import OWN_TEMPLATES
from adapt.job.sequence_job import sequence_stages
from adapt.job.training_jobs import dapt_stages
from adapt.runner.stage import everything
from adapt.stage import generate_text
from adapt.stage.context import Context
from adapt.stage.export_model import Export
from adapt.stage.generate_text import FilterTexts, Generate, GeneratedTexts, Synthesize
from adapt.stage.prepare_text import PrepareTexts
from adapt.stage.training_plan import REPHRASED, weights_with_rephrased
from adapt.support.errors import AdaptError, DataError, ModelError
from tests.generate.toys import tiny_decoder
from tests.job.worlds import changed, dapt_world, sequence_world
from tests.runner.made import made_up

SELF = {"mixture.replay_kind": "self", "objective.kind": "causal"}
SHORT = {"generate.max_length": 100}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns a configuration with an encoder, and writes a decoder's folder next to it."""
    made = dapt_world(tmp_path, monkeypatch)
    folder = tmp_path / "decoder"
    folder.mkdir()
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128}
    (folder / "config.json").write_text(json.dumps(llama))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)
    return made


def built(config: Config, values: dict[str, Any]) -> dict[type, Any]:
    """Returns the generating stages of DAPT by class."""
    for name, value in values.items():
        config = changed(config, name, value)
    stages = everything([dapt_stages(Context.of(config))])
    return {type(stage): stage for stage in stages if isinstance(stage, Generate | Synthesize | FilterTexts)}


def test_text_of_the_model_is_replayed_like_general_text(config: Config) -> None:
    decoder = changed(changed(config, "model.path", "decoder"), "generate.max_length", 100)
    chosen = replace(decoder, mixture=MixtureConfig(replay_kind="self"), objective=ObjectiveConfig(kind="causal"))
    export = dapt_stages(Context.of(chosen))
    replay = export.training.replay
    assert isinstance(replay, PrepareTexts)
    assert isinstance(replay.texts, FilterTexts)
    assert isinstance(replay.texts.generated, Generate)
    assert replay.texts.measured == (export.general,)
    # near copies of the held-out documents of general text and of the domain are dropped
    assert [files.source for files in replay.texts.before] == ["general", ""]
    assert replay.texts.generated.start.digest == Context.of(chosen).start.digest
    assert replay.heldout_fraction == chosen.corpus.heldout_fraction


def test_a_filter_that_drops_all_texts_says_why(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filter is replaced, because it needs Ray."""
    stage = built(changed(config, "model.path", "decoder"), SELF | SHORT)[FilterTexts]
    counts = FilterCounts(dropped={"repetition": 1200, "near copy": 34})
    monkeypatch.setattr(generate_text, "connect", lambda resources: None)
    monkeypatch.setattr(generate_blocks, "filter_texts", lambda *_: counts)
    finished = SimpleNamespace(path=tmp_path, result=made_up(GeneratedTexts, texts=1234, tokens=9000))
    done: Any = dict.fromkeys(stage.inputs.values(), finished)
    with pytest.raises(
        DataError, match="all 1,234 generated texts were dropped: repetition 1,200, near copy 34"
    ) as said:
        stage.run(tmp_path, done)
    assert "generate.cleaning" in str(said.value.fix)
    counts.texts = 1
    assert stage.run(tmp_path, done).result.texts == 1


def test_files_after_the_last_prompt_are_not_read(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [Path(f"prompts-{number}.jsonl") for number in range(3)]
    for path in paths:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in (f"in {path}", " ", "and more")))
    values = {"mixture.replay_kind": "decoder", "generate.generator": "decoder", **SHORT}
    generate = built(config, {**values, "generate.prompts": list(map(str, paths))})[Generate]
    read: list[str] = []
    read_slice = generate_text.read_slice

    def noted(piece: Any, corpus: Any) -> Any:
        read.append(str(piece))
        return read_slice(piece, corpus)

    monkeypatch.setattr(generate_text, "read_slice", noted)
    monkeypatch.setattr(generate_text, "MOST_PROMPTS", 3)
    expected = ["in prompts-0.jsonl", "and more", "in prompts-1.jsonl"]
    assert generate_text.read_prompts(generate.prompts) == expected
    assert len(read) == 2


@pytest.mark.parametrize(
    ("mode", "left_out"),
    [
        ("continual", [["cs"], ["cs", "bio"], ["cs", "bio", "reviews"]]),
        ("separate", [["cs"], ["bio"], ["reviews"]]),
        ("joint", [["cs", "bio", "reviews"]]),
    ],
)
def test_generated_text_of_a_sequence_has_no_copies_of_the_domains_that_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, left_out: list[list[str]]
) -> None:
    world = sequence_world(tmp_path, monkeypatch)
    changes = {"mixture.replay_kind": "gibbs", "method.kind": "plain", "generate.max_length": 20, "sequence.mode": mode}
    for name, value in changes.items():
        world = changed(world, name, value)
    trainings = [step.training for step in sequence_stages(Context.of(world)).steps]
    filters = [training.replay.texts for training in trainings if isinstance(training.replay, PrepareTexts)]
    assert [[files.source for files in each.before if files.source != "general"] for each in filters] == left_out


@pytest.mark.parametrize(
    ("name", "value", "again"),
    [
        ("mixture.replay_kind", "decoder", set()),
        ("generate.tokens", 7, {Generate, FilterTexts}),
        ("generate.top_p", 0.5, {Generate, FilterTexts}),
        ("generate.min_length", 7, {Generate, FilterTexts}),
        ("generate.max_length", 99, {Generate, FilterTexts}),
        ("generate.temperatures", [1.0], {Generate, FilterTexts}),
        ("generate.seed", 1, {Generate, FilterTexts}),
        ("generate.prompts", "data/b.jsonl", {Generate, FilterTexts}),
        ("generate.cleaning", ["repetition"], {FilterTexts}),
        ("corpus.near_threshold", 0.7, {FilterTexts}),
        ("corpus.heldout_fraction", 0.3, {FilterTexts}),
        ("generate.sweeps", 3, set()),
        ("generate.prompt_tokens", 3, set()),
        ("generate.prompt_field", "body", set()),
        ("generate.micro_batch", 3, set()),
        ("seed", 3, set()),
        ("training.learning_rate", 1e-3, set()),
        ("mixture.replay_fraction", 0.3, set()),
    ],
)
def test_which_stages_a_field_repeats(config: Config, name: str, value: Any, again: set[type]) -> None:
    given = {"model.path": "decoder", **SELF, **SHORT}
    more = {"generate.generator": "decoder"} if name == "mixture.replay_kind" else {}
    base, other = built(config, given), built(config, {**given, **more, name: value})
    assert {kind for kind in base if base[kind].key != other[kind].key} == again


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"mixture.replay_kind": "gibbs"}, "generate.sweeps", 3),
        (SELF | {"model.path": "decoder", "generate.prompts": "data/b.jsonl"}, "generate.prompt_tokens", 3),
        (SELF | {"model.path": "decoder", "generate.prompts": "data/b.jsonl"}, "generate.prompt_field", "body"),
    ],
)
def test_fields_of_one_way_of_generating_repeat_it(
    config: Config, given: dict[str, Any], name: str, value: Any
) -> None:
    base, other = (built(config, {**given, **SHORT, **more}) for more in ({}, {name: value}))
    assert base[Generate].key != other[Generate].key


@pytest.mark.parametrize(
    ("name", "value", "again"),
    [
        ("formats", ["summary"], {Synthesize, FilterTexts}),
        ("templates", "mine.yaml", {Synthesize, FilterTexts}),
        ("share", 0.5, {Synthesize, FilterTexts}),
        ("document_tokens", 7, {Synthesize, FilterTexts}),
        ("temperatures", [1.0], {Synthesize, FilterTexts}),
        ("top_p", 0.5, {Synthesize, FilterTexts}),
        ("min_length", 7, {Synthesize, FilterTexts}),
        ("max_length", 100, {Synthesize, FilterTexts}),
        ("seed", 3, {Synthesize, FilterTexts}),
        ("generator", "other", {Synthesize, FilterTexts}),
        ("cleaning", ["repetition"], {FilterTexts}),
        ("micro_batch", 3, set()),
    ],
)
def test_which_stages_a_field_of_rewriting_repeats(
    config: Config, tmp_path: Path, name: str, value: Any, again: set[type]
) -> None:
    shutil.copytree(tmp_path / "decoder", tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").write_text("other")
    (tmp_path / "mine.yaml").write_text(OWN_TEMPLATES.read_text().replace("Summary:", "A summary:"))
    given = {"synthesize.generator": "decoder"}
    base, other = built(config, given), built(config, {**given, f"synthesize.{name}": value})
    assert {kind for kind in base if base[kind].key != other[kind].key} == again


def test_every_field_of_the_sections_is_tested() -> None:
    tested = Path(__file__).read_text()
    assert [f.name for f in fields(GenerateConfig) if f"generate.{f.name}" not in tested] == []
    assert [f.name for f in fields(SynthesizeConfig) if f'"{f.name}"' not in tested] == []


def test_a_given_decoder_and_gibbs_serve_encoders(config: Config) -> None:
    given = built(config, {"mixture.replay_kind": "decoder", "generate.generator": "decoder", **SHORT})[Generate]
    gibbs = built(config, {"mixture.replay_kind": "gibbs", **SHORT})[Generate]
    assert (given.way, given.start.pretrained.model.name) == ("decoder", "decoder")
    assert (gibbs.way, gibbs.start.pretrained.model.name) == ("gibbs", "model")
    assert {"sweeps", "masked_fraction"} <= gibbs.what().keys() - given.what().keys()


def test_a_stage_of_a_chain_can_make_the_generator(config: Config, tmp_path: Path) -> None:
    stages = {
        "general": {"job": "dapt", "model.path": "decoder", "objective.kind": "causal"},
        "adapted": {"job": "dapt", "mixture.replay_kind": "decoder", "generate": {"generator": "general"}},
    }
    common = {
        "model.path": "model",
        "storage.root": config.storage.root,
        "corpus.paths": "data/a.jsonl",
        "generate.max_length": 100,
        "training.sequence_length": 64,
        "evaluation.sequence_length": 64,
    }
    (tmp_path / "chain.yaml").write_text(json.dumps({"common": common, "stages": stages}))
    general, adapted = (goal.stage for goal in build_chain(expand_chain(read_chain("chain.yaml"))).goals)
    (generate,) = (stage for stage in everything([adapted]) if isinstance(stage, Generate))
    assert isinstance(general, Export)
    assert generate.start.training == general.training
    assert generate.inputs["start.training"].key == general.training.key


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mixture.replay_kind": "self", **SHORT}, "is not a decoder, so it cannot generate text from left to right"),
        ({"mixture.replay_kind": "decoder"}, "generate.generator is not set"),
        ({"mixture.replay_kind": "decoder", "generate.generator": "model"}, "is not a decoder"),
        ({"mixture.replay_kind": "decoder", "generate.generator": "nowhere/at/all"}, "nowhere/at/all"),
        ({"model.path": "decoder", "mixture.replay_kind": "gibbs", "objective.kind": "causal"}, "is a decoder"),
        ({"mixture.replay_kind": "gibbs", "generate.max_length": 127}, "takes at most 128 tokens, including 2 special"),
        (
            {"mixture.replay_kind": "gibbs", "generate.prompts": "data/b.jsonl", **SHORT},
            "gibbs generates text from mask",
        ),
        ({"mixture.replay_kind": "gibbs", "mixture.replay_paths": "data/b.jsonl", **SHORT}, "generates the replayed"),
        ({"mixture.replay_kind": "gibbs", "generate.generator": "decoder", **SHORT}, "mixture.replay_kind is gibbs"),
        ({"mixture.replay_kind": "gibbs", "model.head": "new", **SHORT}, "so it cannot generate text"),
        ({"mixture.replay_kind": "gibbs", "generate.temperatures": [], **SHORT}, "temperatures is empty"),
        ({"mixture.replay_kind": "gibbs", "generate.min_length": 300, **SHORT}, "is above generate.max_length"),
        ({"mixture.replay_kind": "gibbs", "generate.cleaning": ["repetitions"], **SHORT}, "repetitions"),
        ({"mixture.rephrased_fraction": 0.5}, "no document is rewritten"),
        ({"synthesize.generator": "model"}, "is not a decoder, so it cannot write text"),
        (
            {
                "synthesize.generator": "decoder",
                "synthesize.formats": ["question"],
                "mixture.rephrased_fraction": 0.5,
            },
            "write only pairs, and no text to train on",
        ),
        ({"synthesize.generator": "decoder", "synthesize.formats": ["tables"]}, "no format 'tables'"),
        (
            {"synthesize.generator": "decoder", "mixture.order": "sequential", "mixture.rephrased_fraction": 0.5},
            "with mixture.order sequential",
        ),
    ],
)
def test_what_cannot_work_is_named_in_the_plan(config: Config, values: dict[str, Any], said: str) -> None:
    with pytest.raises(AdaptError) as caught:
        built(config, values)
    assert said in caught.value.what


def test_only_the_documents_to_train_on_are_rewritten(config: Config) -> None:
    chosen = changed(config, "synthesize", SynthesizeConfig(generator="decoder", formats=["summary", "question"]))
    export = dapt_stages(Context.of(changed(chosen, "mixture.rephrased_fraction", 0.4)))
    assert list(export.training.corpora) == ["domain", REPHRASED]
    text = export.training.corpora[REPHRASED]
    assert isinstance(text, PrepareTexts)
    assert isinstance(text.texts, FilterTexts)
    assert isinstance(text.texts.generated, Synthesize)
    assert text.texts.generated.what()["corpus"]["heldout_fraction"] == chosen.corpus.heldout_fraction
    assert text.texts.measured == (export.general,)
    assert [files.corpus.paths for files in text.texts.before] == ["data/general.jsonl", chosen.corpus.paths]
    assert export.domain == export.training.corpora["domain"]


def test_formats_that_write_only_pairs_add_no_text_to_train_on(config: Config) -> None:
    chosen = changed(config, "synthesize", SynthesizeConfig(generator="decoder", formats=["question"]))
    export = dapt_stages(Context.of(chosen))
    assert [*export.training.corpora] == ["domain"]
    assert export.training.key == dapt_stages(Context.of(config)).training.key
    (pairs,) = export.pairs
    assert isinstance(pairs.generated, Synthesize)
    # the pairs are written before the training, so that a generator that writes no usable pair is found early
    assert [*export.inputs].index("pairs.0") < [*export.inputs].index("training")


def test_the_share_of_rewritten_documents_is_that_of_the_field() -> None:
    mixture = MixtureConfig(rephrased_fraction=0.4)
    rows = {"a": 30, "b": 10, f"a {REPHRASED}": 10, f"b {REPHRASED}": 30}
    assert weights_with_rephrased(rows, None, mixture) == pytest.approx([0.45, 0.15, 0.1, 0.3])
    assert weights_with_rephrased(rows, [1.0, 1.0], mixture) == pytest.approx([0.3, 0.3, 0.1, 0.3])
    assert weights_with_rephrased({"a": 30, REPHRASED: 0}, None, mixture) == [1.0, 0.0]


def test_a_tokenizer_that_cannot_be_loaded_is_refused_before_any_stage_runs(config: Config, tmp_path: Path) -> None:
    tiny_decoder(tmp_path / "tiny")
    (tmp_path / "tiny" / "tokenizer.json").write_text("{")
    stages = built(config, {"mixture.replay_kind": "decoder", "generate.generator": "tiny", **SHORT})
    with pytest.raises(ModelError, match=r"generate\.generator: the tokenizer of"):
        stages[Generate].refuse_early()
    stages = built(config, {"synthesize.generator": "tiny"})
    with pytest.raises(ModelError, match=r"synthesize\.generator: the tokenizer of"):
        stages[Synthesize].refuse_early()


def test_prompts_and_rewritten_documents_must_fit_the_generator(config: Config, tmp_path: Path) -> None:
    tiny_decoder(tmp_path / "tiny", positions=256)
    section = SynthesizeConfig(generator="tiny", formats=["summary"], document_tokens=100, max_length=100)
    with pytest.raises(AdaptError, match="are more than the 256 tokens"):
        built(config, {"synthesize": section})[Synthesize].refuse_early()
    built(config, {"synthesize": replace(section, document_tokens=10, max_length=20)})[Synthesize].refuse_early()


def test_sources_with_weights_need_a_share_for_rewritten_documents(config: Config) -> None:
    sources = [SourceConfig(name, paths=f"data/{name}.jsonl", weight=1.0) for name in ("a", "b")]
    weighted = replace(config, corpus=replace(config.corpus, paths=[], sources=sources))
    with pytest.raises(AdaptError, match="the rewritten documents have none"):
        built(weighted, {"synthesize.generator": "decoder"})
    built(weighted, {"synthesize.generator": "decoder", "mixture.rephrased_fraction": 0.3})

"""The stages of a sequence of domains: what they hang on, and which sequences are refused. Nothing here trains."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapt.config import (
    Config,
    CorpusConfig,
    DasOptions,
    EvaluationSet,
    MethodConfig,
    ModelConfig,
    SequenceConfig,
    SourceConfig,
    StorageConfig,
    TaskConfig,
)
from adapt.config.kinds import KINDS
from adapt.errors import ConfigError, ModelError
from adapt.parse import check
from adapt.runner import Outcome, Record, Stage, Store, plan
from adapt.stages import Catalogue
from adapt.stages.base import START
from adapt.stages.domains import Noted
from adapt.stages.training import IMPORTANCE, Training

DOMAINS = ("cs", "bio", "reviews")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Three domains, two with a task, and a model as far as keys go."""
    monkeypatch.chdir(tmp_path)
    model, data = tmp_path / "model", tmp_path / "data"
    model.mkdir()
    data.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 128}))
    for name in ("model.safetensors", "tokenizer.json"):
        (model / name).write_text(name)
    for name in (*DOMAINS, "more", "general", "train", "dev", "test"):
        (data / f"{name}.jsonl").write_text(json.dumps({"text": f"text of {name}", "label": "a"}) + "\n")
    splits = {split: f"data/{split}.jsonl" for split in ("train", "dev", "test")}
    base = Config(
        name="das",
        model=ModelConfig(path=str(model)),
        corpus=CorpusConfig(sources=[source(name) for name in DOMAINS]),
        method=MethodConfig("das"),
        tasks=[TaskConfig(name="cs", **splits), TaskConfig(name="sentiment", domain="reviews", **splits)],
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )
    return replace(
        base,
        training=replace(base.training, sequence_length=64, max_steps=10),
        evaluation=replace(base.evaluation, sequence_length=64, general_paths="data/general.jsonl"),
        finetune=replace(base.finetune, seeds=[0, 1]),
    )


def source(name: str) -> SourceConfig:
    return SourceConfig(name, paths=f"data/{name}.jsonl")


def with_sources(config: Config, *names: str) -> Config:
    return replace(config, corpus=replace(config.corpus, sources=[source(name) for name in names]))


def sequence(config: Config, **changes: Any) -> Stage:
    return Catalogue(replace(config, sequence=SequenceConfig(**changes))).sequence()


def plain(config: Config) -> Config:
    return replace(config, method=MethodConfig("plain"))


def trainings(stage: Stage) -> list[Stage]:
    exports = [each for name, each in stage.inputs.items() if name.startswith("export ")]
    return [export.inputs["training"] for export in exports]


def keys(stages: list[Stage]) -> list[str]:
    return [stage.key for stage in stages]


def test_each_domain_starts_from_the_last_and_is_masked_by_all_before(config: Config) -> None:
    stage = sequence(config)
    first, second, third = trainings(stage)
    assert START not in first.inputs
    assert (second.inputs[START].key, third.inputs[START].key) == (first.key, second.key)
    general, *others = (each.inputs[IMPORTANCE] for each in (first, second, third))
    assert general.what["about"] == "kl"
    assert {name: each.key for name, each in others[1].inputs.items()} == {
        "text": stage.inputs["text of bio"].key,
        START: second.key,
        "previous": others[0].key,
    }
    assert others[0].inputs["previous"].key == general.key
    assert stage.inputs["importance 3"].inputs[START].key == third.key


def test_all_seen_so_far_is_tested_after_each_domain(config: Config) -> None:
    stage = sequence(config)
    taught = {name for name, each in stage.inputs.items() if each.stage == "finetune"}
    assert taught == {
        *(f"cs {seed} after {after}" for seed in (0, 1) for after in (1, 2, 3)),
        *(f"sentiment {seed} after 3" for seed in (0, 1)),
    }
    models = keys(trainings(stage))
    for name in taught:
        assert stage.inputs[name].inputs[START].key == models[int(name[-1]) - 1]
    assert set(stage.inputs["losses 3"].inputs) == {"cs", "bio", "training"}
    assert "losses 1" not in stage.inputs


def test_without_the_full_matrix_a_task_is_tested_after_its_own_domain_and_the_last(config: Config) -> None:
    dropped = sequence(config).inputs.keys() - sequence(config, full_matrix=False).inputs.keys()
    assert dropped == {"cs 0 after 2", "cs 1 after 2"}
    plain = replace(config, method=MethodConfig("plain"))
    for mode in ("separate", "joint"):  # these test nothing twice
        assert sequence(plain, mode=mode, full_matrix=False).inputs.keys() == sequence(plain, mode=mode).inputs.keys()


def test_forward_transfer_is_tested_before_a_domain_is_learnt(config: Config) -> None:
    more = sequence(config, forward_transfer=True).inputs.keys() - sequence(config).inputs.keys()
    ahead = {
        f"{task} {seed} after {after}"
        for seed in (0, 1)
        for task, after in (("cs", 0), ("sentiment", 0), ("sentiment", 2))
    }
    assert more == ahead


def test_injected_dropout_is_in_the_contrast_too(config: Config) -> None:
    """Where no importance is measured under it."""

    def first(**changes: Any) -> str:
        return trainings(sequence(replace(config, method_options=DasOptions(general_importance="none", **changes))))[0].key

    assert first(injected_dropout=0.2) != first()
    assert first(injected_dropout=0.2, contrast_weight=0.0) == first(contrast_weight=0.0)


def test_a_domain_added_later_redoes_nothing(config: Config) -> None:
    shorter = replace(with_sources(config, "cs", "bio"), tasks=config.tasks[:1])
    before, after = sequence(shorter), sequence(config)
    shared = {name: each.key for name, each in before.inputs.items() if name != "training"}
    assert shared == {name: after.inputs[name].key for name in shared}
    assert before.key != after.key


def test_a_domain_added_later_brings_its_evaluation_sets(config: Config) -> None:
    """Known to the whole corpus, they would change what was learnt before."""
    own = [EvaluationSet("sentiment", "data/test.jsonl")]
    general = [EvaluationSet("cs", "data/dev.jsonl")]
    shorter = replace(with_sources(config, "cs", "bio"), tasks=[])
    before = replace(shorter, corpus=replace(shorter.corpus, decontaminate=general))
    added = [*before.corpus.sources, replace(source("reviews"), decontaminate=own)]
    after = sequence(replace(before, corpus=replace(before.corpus, sources=added)))
    assert keys(trainings(after))[:2] == keys(trainings(sequence(before)))
    sets = [after.inputs[f"text of {name}"].what["corpus"]["decontaminate"]["sets"].keys() for name in DOMAINS]
    assert [set(each) for each in sets] == [{"cs"}, {"cs"}, {"cs", "sentiment"}]


def test_domains_and_replay_leave_out_the_same_measured_text(config: Config) -> None:
    """Also where a part of the sequence works on one domain: general text is that of the whole."""
    mixture = replace(config.mixture, replay_paths="data/more.jsonl", replay_fraction=0.1)
    sources = [*config.corpus.sources, SourceConfig("wiki", paths="data/general.jsonl")]  # which is measured too
    for corpus, share in ((config.corpus, 1.0), (replace(config.corpus, sources=sources), 0.01)):
        stage = sequence(replace(config, mixture=mixture, corpus=corpus), order=list(DOMAINS))
        general = {export.inputs["general"].key for name, export in stage.inputs.items() if name.startswith("export ")}
        texts = [text for training in trainings(stage) for text in training.inputs.values() if text.stage == "prepare"]
        assert len(texts) == 6
        assert {text.inputs["measured general"].key for text in texts} == general
        assert {text.inputs["measured general"].what["corpus"]["heldout_fraction"] for text in texts} == {share}


def test_of_near_copies_the_domain_that_is_listed_later_gives_way(config: Config) -> None:
    near = replace(config, corpus=replace(config.corpus, deduplicate="near"))
    stage = sequence(near)
    general = stage.inputs["text of cs"].inputs["measured general"].inputs["manifest"].key
    manifests = [stage.inputs[f"text of {name}"].inputs["manifest"].key for name in DOMAINS]
    for place, name in enumerate(DOMAINS):
        dedup = stage.inputs[f"text of {name}"].inputs["dedup"]
        assert keys([*dedup.inputs.values()]) == [general, *manifests[: place + 1]]
    other = sequence(near, order=["reviews", "cs", "bio"])  # what is learnt first does not count
    assert {n: t.key for n, t in other.inputs.items() if n.startswith("text")} == {
        n: t.key for n, t in stage.inputs.items() if n.startswith("text")
    }
    fewer = replace(near, tasks=[], corpus=replace(near.corpus, sources=near.corpus.sources[:2]))
    assert keys(trainings(sequence(fewer))) == keys(trainings(stage))[:2]
    twice = [*near.corpus.sources, replace(source("cs"), name="again")]
    with pytest.raises(ConfigError, match="cs and again read the same text"):
        sequence(replace(near, corpus=replace(near.corpus, sources=twice)))


def test_importance_is_measured_on_the_sources_themselves(config: Config) -> None:
    """Of a corpus of several, and of all tasks: what gathers them holds what is held out alone."""
    inputs = Catalogue(replace(config, tasks=[])).dapt().inputs["training"].inputs
    measured = inputs[IMPORTANCE].inputs
    assert [measured[name].key for name in ("text", "text 2", "text 3")] == [inputs[name].key for name in DOMAINS]
    both = [replace(config.tasks[0], name=name) for name in ("one", "two")]
    adapted = replace(config, corpus=CorpusConfig(), task=both[0], tasks=both[1:])
    inputs = Catalogue(adapted).tapt().inputs["training"].inputs
    assert [inputs[IMPORTANCE].inputs[name].key for name in ("text", "text 2")] == [
        inputs["one"].key,
        inputs["two"].key,
    ]


def test_another_order_shares_what_it_begins_with(config: Config) -> None:
    one, other = (sequence(config, order=order) for order in (["cs", "bio", "reviews"], ["cs", "reviews", "bio"]))
    assert keys(trainings(one))[0] == keys(trainings(other))[0]
    assert not set(keys(trainings(one))[1:]) & set(keys(trainings(other)))
    assert sequence(config, order=[]).key == one.key


def test_a_source_that_the_order_leaves_out_is_not_learnt(config: Config) -> None:
    stage = sequence(config, order=["bio", "cs"])
    assert len(trainings(stage)) == 2
    assert not [name for name in stage.inputs if "reviews" in name or "sentiment" in name]


def test_ncl_is_dapt_after_dapt(config: Config) -> None:
    first, second, _ = trainings(sequence(plain(config)))
    assert IMPORTANCE not in {*first.inputs, *second.inputs}
    alone = replace(plain(config), corpus=replace(config.corpus, sources=[], paths="data/cs.jsonl"), tasks=[])
    assert Catalogue(alone).dapt().inputs["training"].key == first.key


def test_one_and_joint(config: Config) -> None:
    one = sequence(plain(config), mode="separate")
    assert all(START not in training.inputs for training in trainings(one))
    assert {name for name, each in one.inputs.items() if each.stage == "finetune"} == {
        *(f"cs {seed} after 1" for seed in (0, 1)),
        *(f"sentiment {seed} after 3" for seed in (0, 1)),
    }
    (joint,) = trainings(stage := sequence(plain(config), mode="joint"))
    assert list(joint.inputs) == list(DOMAINS)
    assert joint.what["training"]["max_steps"] == 30
    assert set(stage.inputs["losses 3"].inputs) == {*DOMAINS, "training"}
    assert keys(trainings(sequence(plain(config), mode="joint", order=["bio", "cs", "reviews"]))) == [joint.key]


@pytest.mark.parametrize(("mode", "shares"), [("continual", [1.0]), ("joint", [0.25, 0.75])])
def test_the_plan_of_weighted_sources(
    config: Config, monkeypatch: pytest.MonkeyPatch, mode: str, shares: list[float]
) -> None:
    """A domain alone has no share, and one that the order leaves out takes none."""
    sources = [replace(each, weight=weight) for each, weight in zip(config.corpus.sources, (1, 5, 3), strict=True)]
    weighted = replace(plain(config), corpus=replace(config.corpus, sources=sources))
    catalogue = Catalogue(replace(weighted, sequence=SequenceConfig(order=["cs", "reviews"], mode=mode)))
    planned = plan(
        catalogue.sequence().inputs["export 1" if mode == "continual" else "export 2"], Store(catalogue.root)
    )
    ready = [replace(line, record=pretended(line.stage, train_tokens=6400)) for line in planned]
    prepared = [new if old.stage.stage == "prepare" else old for old, new in zip(planned, ready, strict=True)]

    def forecast(self: Catalogue, store: Store, corpora: Any) -> Any:
        return self._mixture(corpora)

    monkeypatch.setattr(Catalogue, "forecast", forecast)
    mixture: Any = catalogue.ahead(prepared, Store(catalogue.root))
    assert [slots / 1000 for slots in mixture.slots] == shares


def test_without_mask_and_contrast_no_importance_is_measured(config: Config) -> None:
    bare = replace(config, method_options=DasOptions(soft_mask="none", contrast_weight=0.0))
    assert not [name for name in sequence(bare).inputs if name.startswith("importance")]


@pytest.mark.parametrize(
    ("share", "das", "warns"),
    [
        (0.88, DasOptions(), True),
        (0.31, DasOptions(), False),
        (0.88, DasOptions(embeddings="frequency"), False),
        (0.88, DasOptions(soft_mask="none"), False),
    ],
)
def test_a_model_that_is_mostly_embeddings(
    config: Config, monkeypatch: pytest.MonkeyPatch, share: float, das: DasOptions, warns: bool
) -> None:
    size = SimpleNamespace(embedding_parameters=1000 * share, parameters=1000)
    monkeypatch.setattr("adapt.stages.importance.model_size", lambda folder: size)
    found = Catalogue(replace(config, method_options=das)).unprotected()
    assert [each.split(",")[0] for each in found] == ["88% of the parameters are embeddings"] * warns


def test_without_general_importance_the_first_domain_is_free(config: Config) -> None:
    first, second, _ = trainings(sequence(replace(config, method_options=DasOptions(general_importance="none"))))
    assert IMPORTANCE not in first.inputs
    assert set(second.inputs[IMPORTANCE].inputs) == {"text", START}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": ["cs", "bio", "cs"]}, "names 'cs' twice"),
        ({"order": ["cs", "boi"]}, "did you mean bio"),
        ({"mode": "joint"}, "no domain follows another"),
    ],
)
def test_sequences_that_make_no_sense(config: Config, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sequence(config, **changes)
    assert message in f"{caught.value.what} {caught.value.fix}"


@pytest.mark.parametrize("name", ["general", "training"])
def test_names_that_mean_something_else(config: Config, name: str) -> None:
    renamed = [replace(source("cs"), name=name), source("bio")]
    with pytest.raises(ConfigError, match=f"a domain cannot be called '{name}'"):
        sequence(replace(config, corpus=replace(config.corpus, sources=renamed), tasks=[]))


def test_two_fields_of_one_file_are_two_texts(config: Config) -> None:
    fields = [replace(source("cs"), name=name, text_field=name) for name in ("text", "label")]
    sequence(replace(config, corpus=replace(config.corpus, sources=fields), tasks=[]))


@pytest.mark.parametrize(
    ("field", "value", "general", "domain"),
    [
        ("embeddings", "frequency", False, True),
        ("injected_dropout", 0.2, True, False),
        ("importance_batch", 8, True, True),
        ("normalize", "rank", True, True),
        ("plasticity_floor", 0.5, False, False),
        ("contrast_weight", 0.5, False, False),
    ],
)
def test_what_importance_hangs_on(config: Config, field: str, value: Any, general: bool, domain: bool) -> None:
    """A domain's own identity: its model depends on far more."""
    first, second = (sequence(replace(config, method_options=das)) for das in (config.das, replace(config.das, **{field: value})))
    assert (first.inputs["importance 0"].key != second.inputs["importance 0"].key) == general
    assert (first.inputs["importance 1"].what != second.inputs["importance 1"].what) == domain


def test_random_importance_hangs_on_the_seed_and_little_else(config: Config) -> None:
    random = DasOptions(general_importance="random")
    known = sequence(replace(config, method_options=random)).inputs["importance 0"].key
    fewer = replace(random, importance_sequences=7, granularity="example")
    assert sequence(replace(config, method_options=fewer)).inputs["importance 0"].key == known
    assert sequence(replace(config, method_options=random, seed=3)).inputs["importance 0"].key != known


def test_dropout_of_attention_makes_other_views(config: Config) -> None:
    without = replace(config, model=replace(config.model, attention_dropout=0.0))
    assert sequence(without).inputs["importance 0"].key != sequence(config).inputs["importance 0"].key


def test_a_model_whose_units_are_not_known(config: Config) -> None:
    file = Path(config.model.path) / "config.json"
    file.write_text(json.dumps({"model_type": "ernie", "max_position_embeddings": 128}))
    with pytest.raises(ModelError, match="the units of ernie models are not known"):
        sequence(config)
    sequence(plain(config))


def test_one_text_under_two_names(config: Config) -> None:
    Path("data/bio.jsonl").write_text(Path("data/cs.jsonl").read_text())
    with pytest.raises(ConfigError, match="cs and bio read the same text"):
        sequence(config)


def test_a_task_of_no_domain(config: Config) -> None:
    stray = replace(config.tasks[0], name="stray")
    with pytest.raises(ConfigError, match="task stray: its domain 'stray' is none of corpus.sources"):
        sequence(replace(config, tasks=[stray]))


def test_no_sources(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.sources is empty"):
        sequence(replace(config, corpus=CorpusConfig(paths="data/cs.jsonl")))


def test_a_task_without_train_split(config: Config) -> None:
    with pytest.raises(ConfigError, match="tasks, entry 1: train is empty"):
        check(replace(config, tasks=[replace(config.tasks[0], train=[])]), KINDS["das"])


def begun(config: Config, monkeypatch: pytest.MonkeyPatch, domains: int = 3) -> None:
    """A sequence in which the training of some domain has started."""
    monkeypatch.setattr(Training, "_train", lambda *_: Outcome({"transductive": False}))
    training = trainings(sequence(config))[domains - 1]
    inputs = {name: pretended(each) for name, each in training.inputs.items()}
    training.run(Path("folder"), inputs)


def pretended(stage: Stage, **metrics: Any) -> Record:
    none: dict[str, Any] = {}
    return Record(
        stage.stage, stage.name, stage.key, 1, none, none, metrics, none, none, none, none, "", Path("nowhere")
    )


def test_a_sequence_changed_in_its_middle(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(config, monkeypatch)
    longer = with_sources(config, *DOMAINS, "more")
    sequence(longer)
    sequence(config, order=["cs", "bio"])
    renamed = replace(config.corpus, sources=[replace(each, name=f"{each.name}-2") for each in config.corpus.sources])
    sequence(replace(config, corpus=renamed, tasks=[]))
    with pytest.raises(ConfigError, match="sequence das: domain 2 was bio and is now reviews"):
        sequence(config, order=["cs", "reviews", "bio"])
    sequence(replace(config, name="other"), order=["cs", "reviews", "bio"])
    Path("data/bio.jsonl").write_text(json.dumps({"text": "new text"}) + "\n")
    with pytest.raises(
        ConfigError, match="the text of domain 2, bio, or how it is read or decontaminated, has changed"
    ):
        sequence(config)


def test_domains_that_have_not_begun_may_change_places(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(config, monkeypatch, domains=1)
    sequence(config, order=["cs", "reviews", "bio"])
    with pytest.raises(ConfigError, match="domain 1 was cs and is now bio"):
        sequence(config, order=["bio", "cs"])


def test_a_shorter_run_forgets_nothing_of_what_was_begun(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(config, monkeypatch)
    file = Path(config.storage.root) / "sequence" / "das.order.json"
    known = json.loads(file.read_text())
    Noted(file, tuple((name, key) for name, key in known[:1])).save()
    assert json.loads(file.read_text()) == known

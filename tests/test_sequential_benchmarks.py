"""Tests the sequential studies in benchmarks/, and the file with their results. Nothing is run."""

import gzip
import json
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_run import ChainRun
from adapt.chain.sequential_study import study_nodes
from adapt.config import flat
from adapt.tuning.search_checks import read_space
from benchmarks.few_labels import shuffled
from benchmarks.sequential import main, raw, smaller, split_options, whole_hours
from tests.show.report.fake_studies import fake_study

ROOT = Path(__file__).parents[1]
FILES = sorted(ROOT.glob("benchmarks/study_*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_recipes_have_equal_budgets_and_seeds_that_no_trial_had(file: Path) -> None:
    source = read_chain(str(file), {"data": "data"})
    assert source.rounds is not None
    nodes = study_nodes(source)
    searches = [node for node in nodes if node.is_search]
    assert len({(node.config.tune.searcher, node.config.tune.samples) for node in searches}) == 1
    assert not any(node.config.tune.fresh_seeds for node in searches)
    tried = {seed for node in searches for seed in (node.config.seed, *node.config.finetune.seeds)}
    for node in nodes:
        if node.name == "finetune":
            assert node.tuned
            assert len(node.config.finetune.seeds) == source.rounds.max_seeds
            assert not {*node.config.finetune.seeds} & (tried - {0})
        if node.name == "best":
            assert node.tuned
            assert node.config.seed not in tried
    recipes = {node.values["recipe"] for node in expand_chain(source) if "recipe" in node.values}
    assert source.baseline in recipes
    assert recipes == set(source.sets["recipe"])


TINY = {"rate": "5e-4", "head_rate": "5e-4", "space": "tiny"}
SETTINGS = [
    *(("study_forgetting", {}, 4), ("study_labels", {}, 4), ("study_text", {}, 4), ("study_labels", TINY, 4)),
    *(("study_text", TINY, 4), ("study_text", {**TINY, "space": "short"}, 2)),
    ("study_labels", {**TINY, "space": "rates"}, 4),
    *(("study_controls", {}, 2), ("study_controls", {**TINY, "space": "short"}, 2)),
    *(("study_decoder", {}, 2), ("study_advice", {}, 1)),
]


@pytest.mark.parametrize(("study", "let", "samples"), SETTINGS)
def test_no_trial_repeats_the_settings_of_the_study(study: str, let: dict[str, str], samples: int) -> None:
    source = read_chain(str(ROOT / "benchmarks" / f"{study}.yaml"), {"data": "data", **let})
    for node in expand_chain(source):
        if node.is_search:
            fields, space = flat(node.config), read_space(node.config.tune.space)
            grid = {*product(*(domain.categories for domain in space.values()))}
            assert len(grid) == samples
            assert tuple(fields[name] for name in space) not in grid


def test_all_trials_of_a_recipe_take_the_same_compute_and_replay() -> None:
    nodes = expand_chain(read_chain(str(ROOT / "benchmarks" / "study_forgetting.yaml"), {"data": "data"}))
    for node in nodes:
        recipe, replays = node.values["recipe"], node.config.sequence.replay_fraction
        assert bool(replays) is recipe.endswith("-replay")
        if node.is_search:
            space = read_space(node.config.tune.space)
            shares = space["sequence.replay_fraction"].categories if "sequence.replay_fraction" in space else [replays]
            assert shares == [replays]
        if node.is_search and recipe.startswith("DAS"):
            weights = [*space["das.contrast_weight"].categories, flat(node.config)["das.contrast_weight"]]
            assert {weight > 0 for weight in weights} == {recipe == "DAS"}


def test_a_part_of_a_study_has_fewer_recipes_and_one_look() -> None:
    options, rest = split_options([*("study.yaml", "--recipes", "plain,L2-SP-replay"), *("--seeds", "7", "--out", "a")])
    assert rest == ["study.yaml"]
    source = read_chain(str(ROOT / "benchmarks" / "study_forgetting.yaml"), {"data": "data"})
    part = smaller(source, options)
    assert {node.values["recipe"] for node in expand_chain(part)} == {"plain", "L2-SP-replay"}
    assert part.rounds is not None
    assert part.rounds.seeds == (7,)
    assert smaller(source, {}) == source
    other = smaller(source, {"recipes": "replay,DAS", "baseline": "DAS"})
    assert (other.baseline, list(other.sets["recipe"])) == ("DAS", ["replay", "DAS"])
    with pytest.raises(SystemExit, match="unknown: no"):
        smaller(source, {"recipes": "plain,no"})
    with pytest.raises(SystemExit, match="the baseline plain is not among the recipes replay, DAS"):
        smaller(source, {"recipes": "replay,DAS"})


def test_a_plan_of_some_recipes_has_only_the_stages_that_these_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[ChainRun] = []
    monkeypatch.setattr(ChainRun, "plan", lambda run: plans.append(run) or "nothing is run")
    file = str(ROOT / "benchmarks" / "study_controls.yaml")
    options = ["--only", "task=imdb", "--baseline", "DAPT", "--recipes", "DAPT,not-DAPT,base", "--plan"]
    monkeypatch.setattr("sys.argv", ["sequential", file, "--data", "data", *options])
    main()
    assert capsys.readouterr().out == "nothing is run\n"
    nodes = {node.label for node in study_nodes(plans[0].file, plans[0].only) if node.name == "dapt"}
    assert nodes == {"dapt[near, imdb]", "dapt[far, imdb]"}


def test_the_file_of_results_has_every_score(tmp_path: Path) -> None:
    found = fake_study(tmp_path)
    run = ChainRun(read_chain(str(FILES[0]), {"data": "data"}))
    content = json.loads(json.dumps(raw(run, found)))
    runs = [entry for entry in found.entries if entry.record.stage == "finetune"]
    assert sum(len(seeds) for recipes in content["scores"].values() for seeds in recipes.values()) == len(runs)
    assert run.file.rounds is not None
    assert content["sequential"]["max_seeds"] == run.file.rounds.max_seeds


def test_a_part_of_a_split_has_the_classes_of_the_whole_split(tmp_path: Path) -> None:
    file = tmp_path / "dev.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        lines.writelines(json.dumps({"text": str(i), "label": "ab"[i >= 500]}) + "\n" for i in range(1000))
    part = shuffled([file])[:250]
    assert 95 < Counter(example["label"] for example in part)["a"] < 155
    assert part == shuffled([file])[:250]


def test_the_cost_of_a_longer_run_includes_the_steps_of_the_shorter_one() -> None:
    assert whole_hours({"device_hours": 0.2, "tokens": 700}, 1000) == pytest.approx(0.2 / 0.7)
    assert whole_hours({"device_hours": 0.2, "tokens": 1000}, 1000) == 0.2
    assert whole_hours({"device_hours": 0.2}, 1000) == 0.2
    assert whole_hours({}, 1000) is None


@pytest.mark.parametrize("study", ["few_steps", "rates", "minilm_rates"])
def test_studies_of_fixed_settings_compare_with_their_baseline(study: str) -> None:
    source = read_chain(str(ROOT / "benchmarks" / f"{study}.yaml"), {"data": "data"})
    nodes = study_nodes(source)
    assert not any(node.is_search for node in nodes)
    assert source.baseline in {node.values["recipe"] for node in nodes if node.name == "finetune"}


def test_equal_rates_are_compared_with_the_models_of_the_controls() -> None:
    let = {"data": "data", "model": "bert"}
    controls = expand_chain(read_chain(str(ROOT / "benchmarks" / "study_controls.yaml"), {**let, **TINY}))
    wanted = {"dapt": {"text": "partner", "task": "chemprot"}, "tapt": {"pool": "none", "task": "chemprot"}}
    rates = expand_chain(read_chain(str(ROOT / "benchmarks" / "rates.yaml"), let))
    models = [node for node in rates if node.name in wanted]
    assert len(models) == 2
    for model in models:
        (same,) = [node for node in controls if node.name == model.name and node.values == wanted[model.name]]
        ours, theirs = flat(model.config), flat(same.config)
        changed = {name for name in ours if ours[name] != theirs[name] and not name.startswith("tune.")}
        assert changed <= {"name", "finetune.learning_rate"}

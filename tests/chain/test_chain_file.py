"""Tests of chain files: format, placeholders, parameter sweeps, and references between stages."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.chain.chain_file import ChainFile, read_chain, read_command
from adapt.chain.chain_nodes import Node, expand_chain, fill
from adapt.support.errors import ConfigError

TASK = {name: f"{{data}}/{{task}}/{name}.jsonl" for name in ("train", "dev", "test")}
CHAIN: dict[str, Any] = {
    "name": "study",
    "baseline": "base",
    "let": {"data": "/data", "steps": 7},
    "common": {"training.max_steps": "{steps}", "training": {"learning_rate": 0.1}},
    "sets": {
        "domain": {"cs": {"file": "acl", "other": "bio"}, "bio": {"file": "pubmed", "other": "cs"}},
        "task": {"arc": {"domain": "cs"}, "chem": {"domain": "bio"}},
        "recipe": {
            "base": {"start": None},
            "DAPT": {"start": "dapt[{task.domain}]"},
            "TAPT": {"start": "tapt[{task}, DAPT]"},
        },
        "way": ["DAPT", "none"],
    },
    "stages": {
        "finetune": {"job": "finetune", "for": ["recipe", "task"], "from": "{recipe.start}", "task": TASK},
        "dapt": {"job": "dapt", "for": "domain", "corpus.paths": "{data}/{domain.file}.jsonl"},
        "tapt": {"job": "tapt", "for": ["task", "way"], "task": TASK, "from": "dapt[{task.domain}]"},
    },
}


def written(tmp_path: Path, **changes: Any) -> str:
    file = tmp_path / "chain.yaml"
    file.write_text(yaml.safe_dump({**CHAIN, **changes}, sort_keys=False))
    return str(file)


def nodes(tmp_path: Path, only: dict[str, list[str]] | None = None, **changes: Any) -> dict[str, Node]:
    return {node.label: node for node in expand_chain(read_chain(written(tmp_path, **changes)), only)}


def test_an_entry_becomes_a_node_per_combination(tmp_path: Path) -> None:
    found = nodes(tmp_path)
    assert [label for label in found if label.startswith("finetune")] == [
        f"finetune[{recipe}, {task}]" for recipe in ("base", "DAPT", "TAPT") for task in ("arc", "chem")
    ]
    assert found["finetune[TAPT, arc]"].values == {"recipe": "TAPT", "task": "arc"}
    assert len(found) == 6 + 2 + 4


def test_nodes_follow_those_that_they_start_from(tmp_path: Path) -> None:
    found = nodes(tmp_path)
    assert found["finetune[base, arc]"].start is None
    assert found["finetune[DAPT, arc]"].start == "dapt[cs]"
    assert found["finetune[TAPT, chem]"].start == "tapt[chem, DAPT]"
    assert found["tapt[chem, DAPT]"].start == "dapt[bio]"
    order = list(found)
    assert all(order.index(node.start) < order.index(label) for label, node in found.items() if node.start)


@pytest.mark.parametrize("name", ["bert.base", "MLM+TSDAE", "two words"])
def test_a_reference_may_name_every_entry(tmp_path: Path, name: str) -> None:
    first = {"job": "dapt", "for": "domain", "corpus.paths": "x"}
    second = {"job": "finetune", "from": f"{name}[cs]", "task": {"name": "arc", "train": "a", "dev": "b", "test": "c"}}
    found = nodes(tmp_path, stages={name: first, "scores": second})
    assert found["scores"].start == f"{name}[cs]"


def test_fields_come_from_common_and_then_from_the_entry(tmp_path: Path) -> None:
    found = nodes(tmp_path)
    dapt, tapt = found["dapt[cs]"].config, found["tapt[arc, DAPT]"].config
    assert dapt.corpus.paths == "/data/acl.jsonl"
    assert (dapt.training.max_steps, dapt.training.learning_rate) == (7, 0.1)
    assert dapt.training.epochs is None
    assert tapt.training.epochs == 100  # 100 is the job's default value
    assert tapt.task.dev == "/data/arc/dev.jsonl"
    assert dapt.name == "dapt-cs"
    own = {**CHAIN["stages"]["dapt"], "training.learning_rate": 0.5, "name": "own"}
    changed = nodes(tmp_path, stages={**CHAIN["stages"], "dapt": own})["dapt[cs]"].config
    assert (changed.training.learning_rate, changed.training.max_steps, changed.name) == (0.5, 7, "own")


def test_only_limits_nodes_to_members_and_their_inputs(tmp_path: Path) -> None:
    assert set(nodes(tmp_path, {"task": ["arc"], "recipe": ["DAPT", "base"]})) == {
        *("finetune[DAPT, arc]", "finetune[base, arc]", "dapt[cs]")
    }
    assert set(nodes(tmp_path, {"stage": ["dapt"]})) == {"dapt[cs]", "dapt[bio]"}
    with pytest.raises(ConfigError, match="unknown key --only task=ark") as caught:
        nodes(tmp_path, {"task": ["ark"]})
    assert "did you mean arc?" in caught.value.fix


def test_only_takes_one_set_per_option() -> None:
    with pytest.raises(ConfigError, match="names several sets") as caught:
        read_command(["run", "file", "--only", "task=arc,sci,recipe=DAPT"])
    assert caught.value.fix == "repeat the option: --only task=arc,sci --only recipe=DAPT"


@pytest.fixture
def recipe(tmp_path: Path) -> ChainFile:
    return read_chain(written(tmp_path), {"data": "/elsewhere"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{data}/x", "/elsewhere/x"),
        ("{steps}", 7),
        ("{steps} steps", "7 steps"),
        ("{task}", "arc"),
        ("{task.domain}", "cs"),
        ("{task.domain.file}", "acl"),
        ("{task.domain.other}", "bio"),
        ("{recipe.start}", "dapt[cs]"),
        (["{task}", {"a": "{steps}"}], ["arc", {"a": 7}]),
        (None, None),
        ("{} {a b} $x", "{} {a b} $x"),
    ],
)
def test_placeholders(recipe: ChainFile, value: Any, expected: Any) -> None:
    assert fill(value, recipe, {"task": "arc", "recipe": "DAPT"}, "here") == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stages": {}}, "has no stages"),
        ({"stages": {"a": {"corpus.paths": "x"}}}, "stages: a in .* has no job"),
        ({"stages": {"a, b": {"job": "dapt"}}}, r"stages: a, b in .*'a, b' cannot be the name of a stage"),
        ({"stages": {"a[b]": {"job": "dapt"}}}, "cannot be the name of a stage"),
        ({"stages": {"a": {"job": "dream"}}}, "stages: a in .*: there is no job dream"),
        ({"stages": {"a": {"job": "das"}}}, "stages: a in .*: there is no job das"),
        ({"stages": {"a": {"job": "dapt", "for": "domains"}}}, "unknown key domains in stages: a"),
        ({"stages": {"a": {"job": "dapt", "corpus.path": "x"}}}, "unknown key corpus.path in a"),
        ({"stages": {"a": {"job": "dapt", "corpus.paths": "{date}"}}}, "unknown key {date} in a"),
        ({"stages": {"a": {"job": "dapt", "for": "task", "corpus.paths": "{task.file}"}}}, "unknown key {task.file}"),
        ({"stages": {"a": {"job": "dapt", "corpus.paths": "x", "from": "b"}}}, "unknown key b in a"),
        ({"stages": {"a": {"job": "dapt", "corpus.paths": "x", "from": "a"}}}, "a starts from a"),
        (
            {"stages": {"a": {"job": "dapt", "for": "task", "corpus.paths": "x", "from": "a"}}},
            "from: `a` matches several stages",
        ),
        (
            {"stages": {"a": {"job": "dapt", "for": "task", "corpus.paths": "x", "from": "a[arc,sci]"}}},
            r"from: `a\[arc,sci\]` matches no stage",
        ),
        ({"stages": {"a": {"job": "dapt"}}}, "corpus.paths is empty"),
        ({"stages": {"a": {"job": "dapt", "corpus.paths": "x", "training.max_steps": -1}}}, "a in .*max_steps is -1"),
        ({"let": {"data": "{data}", "steps": 7}}, "refers back to itself"),
        ({"sets": {"task": "arc"}}, "sets: task in .* is not a list of members"),
        ({"sets": [1]}, "sets in .* does not contain"),
        ({"stage": {}}, "unknown key stage in"),
    ],
)
def test_errors_in_chain_files_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        nodes(tmp_path, **changes)


def test_the_command_line() -> None:
    given = ["run", "a.yaml", "--data", "/d", "--only=task=a,b", "--training.max_steps", "7", "--debug"]
    command = read_command(given)
    assert (command.verb, command.file, command.let) == ("run", "a.yaml", {"data": "/d"})
    assert (command.only, command.common) == ({"task": ["a", "b"]}, {"training.max_steps": 7})


@pytest.mark.parametrize("given", ["", "run", "walk a.yaml", "run --data x", "run a.yaml --data", "run a.yaml x y"])
def test_an_incomplete_command_line_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_command(given.split())


def test_an_unknown_name_on_the_command_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key --date") as caught:
        read_chain(written(tmp_path), {"date": "x"})
    assert "did you mean data?" in caught.value.fix


@pytest.mark.heavy
def test_the_shipped_chains_can_be_read() -> None:
    folder = Path(__file__).resolve().parents[2] / "jobs" / "recipes"
    chains = [file for file in sorted(folder.glob("*.yaml")) if "\nstages:" in file.read_text()]
    assert chains
    for file in chains:
        assert expand_chain(read_chain(str(file)))
    assert len((folder / "study.yaml").read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"baseline": "bsae"}, "bsae"),
        ({"report": {"margins": 1}}, "unknown key report.margins"),
        ({"report": {"margin": 1}}, "margin in .* does not contain"),
        ({"report": {"margin": {"point": 1}}}, "yaml: unknown key point in report.margin"),
        ({"report": {"margin": {"nats": -0.1}}}, "yaml: report.margin.nats is -0.1, but must be >=0"),
        ({"name": "../elsewhere"}, "cannot be the name of a folder"),
        ({"common": {"training": 3}}, "training in .* has no fields"),
        ({"common": {4: 3}}, "unknown key 4"),
        ({"sets": CHAIN["sets"] | {"way": ["a,b"]}}, "'a,b' cannot be the name of a member"),
        ({"stages": CHAIN["stages"] | {"dapt": {"job": "dapt", "for": 3}}}, "`for` is not a list of sets"),
        ({"stages": CHAIN["stages"] | {"dapt": {"job": "dapt", "for": [["domain"]]}}}, "unknown key"),
        ({"stages": CHAIN["stages"] | {"dapt": {"job": "dapt", "for": ["domain", "domain"]}}}, "twice"),
        ({"let": {"data": "/data", 9: 1}, "common": {"model.path": "{nope}"}}, "nope"),
    ],
)
def test_impossible_values_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        nodes(tmp_path, **changes)


def test_the_margin_of_the_report_is_read(tmp_path: Path) -> None:
    file = read_chain(written(tmp_path, report={"margin": {"points": 0.5}}))
    assert (file.margin.points, file.margin.nats) == (0.5, 0.02)


def test_an_empty_list_of_models_compares_none(tmp_path: Path) -> None:
    dapt = CHAIN["stages"]["dapt"] | {"comparison.models": []}
    assert nodes(tmp_path, stages=CHAIN["stages"] | {"dapt": dapt})["dapt[cs]"].compared == {}


def test_invalid_yaml_on_the_command_line_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--training\.max_steps"):
        read_command(["run", "file", "--training.max_steps", "{"])
    common = read_command(
        ["run", "file", "--corpus.paths", "docs #2/a: b.txt", "--training.max_steps", "2 # two"]
    ).common
    assert common == {"corpus.paths": "docs #2/a: b.txt", "training.max_steps": 2}

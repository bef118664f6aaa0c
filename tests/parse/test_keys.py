"""Unknown keys and unreadable files are refused."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from adapt.config import SourceConfig
from adapt.support.errors import ConfigError
from tests.parse.calls import PATHS, parsed, refused, sources


@pytest.mark.parametrize(
    ("argument", "nearest"),
    [
        ("--training.learning_rat=1", "training.learning_rate"),
        ("--learning_rate=1", "training.learning_rate"),
        ("--trainin.learning_rate=1", "training.learning_rate"),
        ("--data.learning_rate=1", "training.learning_rate"),
        ("--corpus.path=a", "corpus.paths"),
        ("--resources.worker=2", "resources.workers"),
        ("--sed=1", "seed"),
        ("--training.lerning_rate+=1", "training.learning_rate"),
    ],
)
def test_an_unknown_key_on_the_command_line_names_the_nearest(argument: str, nearest: str) -> None:
    for arguments in ([argument], argument.split("=")):
        error = refused(PATHS, *arguments)
        assert error.what.startswith(f"unknown key {argument.split('=')[0].rstrip('+')}")
        assert error.fix == f"did you mean {nearest}?"


@pytest.mark.parametrize(
    ("content", "key", "nearest"),
    [
        ("sed: 1\n", "sed", "seed"),
        ("trainin:\n  max_steps: 1\n", "trainin.max_steps", "training.max_steps"),
        ("trainin: {}\n", "trainin", "training"),
        ("trainin:\n", "trainin", "training"),
        ("training:\n  max_step: 1\n", "training.max_step", "training.max_steps"),
        ("training.max_step: 1\n", "training.max_step", "training.max_steps"),
        ("max_steps: 1\n", "max_steps", "training.max_steps"),
    ],
)
def test_an_unknown_key_in_a_file_names_file_and_nearest(
    write: Callable[..., str], content: str, key: str, nearest: str
) -> None:
    file = write(content)
    for arguments in (["--config", file], [f"--config={file}"]):
        error = refused(PATHS, *arguments)
        assert (error.what, error.fix) == (f"unknown key {key} in {file}", f"did you mean {nearest}?")


def test_a_key_without_a_similar_one_points_to_the_help() -> None:
    error = refused(PATHS, "--xyzzy.qqqqq=1")
    assert (error.what, error.fix) == ("unknown key --xyzzy.qqqqq", "see --help for all keys")


SOURCES = (
    "corpus:\n  sources:\n  - {name: wiki, paths: [a, b], weight: 2}\n  - {name: hub, source: dataset, dataset: o/n}\n"
)


def test_sources_in_a_file_and_on_the_command_line(write: Callable[..., str]) -> None:
    expected = [
        SourceConfig("wiki", paths=["a", "b"], weight=2.0),
        SourceConfig("hub", "dataset", dataset="o/n", weight=1),
    ]
    content = SOURCES.replace("o/n", "o/n, weight: 1")
    assert parsed("--config", write(content)).corpus.sources == expected
    entries = yaml.safe_load(content)["corpus"]["sources"]
    assert parsed("--corpus.sources", json.dumps(entries)).corpus.sources == expected


@pytest.mark.parametrize(
    ("good", "bad", "what", "fix"),
    [
        ("dataset:", "datset:", "unknown key datset in entry 2 of corpus.sources", "did you mean dataset?"),
        ("paths", "path", "unknown key path in entry 1 of corpus.sources", "did you mean paths?"),
        ("name: hub, ", "", "entry 2 of corpus.sources has no name", "add `name: …`"),
    ],
)
def test_a_source_with_a_wrong_key_is_named(
    write: Callable[..., str], good: str, bad: str, what: str, fix: str
) -> None:
    content = SOURCES.replace(good, bad, 1)
    entries = json.dumps(yaml.safe_load(content)["corpus"]["sources"])
    for arguments in (["--config", write(content)], ["--corpus.sources", entries], [f"--corpus.sources={entries}"]):
        error = refused(*arguments)
        assert (error.what, error.fix) == (what, fix)


def test_keys_are_not_abbreviated() -> None:
    assert "--training.learning" in refused(PATHS, "--training.learning=1").what


@pytest.mark.parametrize("content", ["training:\n", "training: 5\n", "training: [1]\n", "seed: 1\ntraining: null\n"])
def test_a_section_must_hold_fields(write: Callable[..., str], content: str) -> None:
    file = write(content)
    assert refused(PATHS, "--config", file).what == f"training in {file} has no fields"


BROKEN = [
    ("training: [1\nseed: 2\n", "line 2"),
    ("name: a\nseed: 1: 2\n", "line 2"),
    ("name: a\n\tseed: 1\n", "line 2"),
    ('name: "a\nseed: 1\n', "line 3"),
    (b"name: a\nseed: \xff\n", "utf-8"),
]


@pytest.mark.parametrize(("content", "place"), BROKEN)
def test_invalid_yaml_is_named_with_the_line(write: Callable[..., str], content: str | bytes, place: str) -> None:
    file = write(content)
    error = refused(PATHS, "--config", file)
    assert error.what.startswith(f"{file} is not valid YAML: ")
    assert place in error.what


@pytest.mark.parametrize("content", ["", "# only this\n", "- a\n- b\n", "text\n", "7\n"])
def test_a_file_without_keys_is_named(write: Callable[..., str], content: str) -> None:
    file = write(content)
    assert refused(PATHS, "--config", file).what == f"{file} has no `key: value` lines"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.yaml")
    for arguments in (["--config", gone], [f"--config={gone}"]):
        assert refused(PATHS, *arguments).what == f"{gone}: No such file or directory"
    assert refused("--config", str(tmp_path)).what == f"{tmp_path}: Is a directory"


def test_unknown_keys_in_evaluation_sets_of_a_source_are_named(write: Callable[..., str]) -> None:
    source = "corpus:\n  sources: [{name: a, paths: b, decontaminate: [{name: c, pathz: d}]}]\n"
    assert (
        refused("--config", write(source)).what
        == "unknown key pathz in entry 1 of decontaminate in entry 1 of corpus.sources"
    )
    assert refused(*sources("{name: a, paths: b, decontaminate: [{name: c}]}")).what.endswith("has no paths")


def test_config_without_a_file() -> None:
    assert refused(PATHS, "--config").what == "--config names no file"


def test_a_repeated_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("corpus:\n  paths: a\ntraining: {max_steps: 1}\nname: x\ncorpus:\n  paths: b\n")
    with pytest.raises(ConfigError, match=r"corpus occurs twice in .*, in lines 1 and 5"):
        parsed("--config", str(file))
    file.write_text("corpus: {paths: a, sources: [{name: a, paths: x,\n name: b}]}\n")
    with pytest.raises(ConfigError, match=r"name occurs twice in .*, in lines 1 and 2"):
        parsed("--config", str(file))
    file.write_text("corpus: &a {paths: a}\nmixture: {<<: {order: sequential}}\n")
    assert parsed("--config", str(file)).corpus.paths == "a"


@pytest.mark.parametrize(
    ("content", "what", "fix"),
    [
        ("name: a\n\tseed: 1\n", "line 2", "spaces instead of tabs"),
        ("corpus:\n  paths: *.jsonl\n", "line 2", "'*.jsonl'"),
        ("name: @x\n", "line 1", "in quotes"),
        ("name: a: b\n", "line 1", "in quotes"),
        ("training:\n    beta1: 1\n  beta2: 1\n", "line 3", "indent the keys"),
        ("name: !env HOME\n", "line 1", "remove the tag"),
        ("name: a\n---\nname: b\n", "line 2", "one document per file"),
        (b"name: \xff\n", "utf-8", "UTF-8"),
    ],
)
def test_messages_suggest_a_fix_for_invalid_yaml(
    write: Callable[..., str], content: str | bytes, what: str, fix: str
) -> None:
    error = refused(PATHS, "--config", write(content))
    assert what in error.what
    assert fix in error.fix


def test_a_field_given_below_its_section_and_by_its_dotted_name(write: Callable[..., str]) -> None:
    file = write("training.beta1: .9\nname: x\ntraining:\n  beta1: .8\n")
    assert refused(PATHS, "--config", file).what == f"training.beta1 occurs twice in {file}, in lines 1 and 4"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("training.lr", "training.learning_rate"),
        ("training.learn", "training.learning_rate"),
        ("training.wd", "training.weight_decay"),
        ("training.batch_size", "training.global_batch_size"),
    ],
)
def test_a_short_form_names_the_field(name: str, meant: str) -> None:
    assert refused(PATHS, f"--{name}=1").fix == f"did you mean {meant}?"


@pytest.mark.parametrize(
    ("content", "fix"),
    [
        ("training:\n  learning_rate:1\n", "a space after each colon"),
        ("method: replay\n", "write `method: {kind: replay}`"),
        ("model: bert-base-uncased\n", "write `model: {path: bert-base-uncased}`"),
        ("corpus: data.jsonl\n", "write `corpus: {paths: data.jsonl}`"),
        ("task: data.jsonl\n", "write `task: {train: data.jsonl}`"),
        ("model: demo:bert-tiny\n", "write `model: {path: demo:bert-tiny}`"),
        ("model: path:demo\n", "a space after each colon"),
    ],
)
def test_a_section_given_as_a_text_is_refused(write: Callable[..., str], content: str, fix: str) -> None:
    write('{"text": "a"}\n{"text": "b"}\n', "data.jsonl")
    error = refused("--config", write(content))
    assert "but must have fields with values" in error.what
    assert fix in error.fix


@pytest.mark.parametrize("is_shipped", [True, False])
def test_a_chain_file_is_refused_by_name(write: Callable[..., str], is_shipped: bool) -> None:
    file = "study" if is_shipped else write("stages:\n  a: {job: dapt}\n")
    error = refused("--config", file)
    assert (error.what, error.fix) == (f"{file} is a chain file", f"run it with `dontstop chain run {file}`")


@pytest.mark.parametrize(
    ("section", "value", "fix"),
    [
        ("corpus", "data.jsonl", "write --corpus.paths data.jsonl"),
        ("corpus", "my data.txt", "write --corpus.paths 'my data.txt'"),
        ("task", "data.jsonl", "write --task.train data.jsonl"),
        ("model", "demo:bert-tiny", "write --model.path demo:bert-tiny"),
        ("training", "fast", "write --training.FIELD VALUE"),
    ],
)
def test_a_section_given_as_an_option_is_refused(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, section: str, value: str, fix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data.jsonl", "my data.txt"):
        write('{"text": "a"}\n{"text": "b"}\n', name)
    error = refused(f"--{section}", value)
    assert error.what == f"{section} in the command line is the text {value!r}, but must have fields with values"
    assert error.fix == fix


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("corpus.sources: [os.path]", "entry 1 of corpus.sources is 'os.path', but must have fields"),
        ("corpus.decontaminate: [test.jsonl]", "entry 1 of corpus.decontaminate is 'test.jsonl', but must have fields"),
        ("tasks: [antigravity.Task]", "entry 1 of tasks is 'antigravity.Task', but must have fields"),
    ],
)
def test_an_entry_without_fields_imports_nothing(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, given: str, what: str
) -> None:
    real = importlib.import_module

    def only_ours(name: str, package: str | None = None) -> ModuleType:
        # Modules of methods are imported only when they are used.
        assert name.partition(".")[0] == "adapt", f"imported {name}"
        return real(name, package)

    monkeypatch.setattr("importlib.import_module", only_ours)
    assert what in refused("--config", write(given)).what
    name, _, value = given.partition(": ")
    assert what in refused(f"--{name}={value}").what


def test_sources_are_a_list(write: Callable[..., str]) -> None:
    error = refused("--config", write("corpus:\n  sources: {wiki: {paths: a}}\n"))
    assert error.what == "corpus.sources must be a list, but has fields"
    assert error.fix.startswith("write a list of entries: [{name: ")


def test_an_option_given_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed(PATHS, "--training.beta1=.1", "--training.beta1", ".2").training.beta1 == 0.2
    assert capsys.readouterr().err == "--training.beta1 is given twice: .2 is used, and .1 is ignored\n"
    assert parsed(PATHS, "--seed=1", "--seed=1").seed == 1
    assert capsys.readouterr().err == ""
    for second in ("--corpus.paths=b", "--corpus.paths=[b]"):
        error = refused("--corpus.paths=a", second)
        assert error.what.startswith("--corpus.paths is given twice, as a and as ")
        assert "--corpus.paths '[a, b]'" in error.fix


def test_a_dash_of_a_word_processor() -> None:
    error = refused(PATHS, "\u2014seed", "1")
    assert error.what.startswith("unrecognized arguments: \u2014seed")
    assert "two hyphens" in error.fix


def test_a_home_folder_in_the_name_of_a_file(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write("seed: 7\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for arguments in (["--config=~/job.yaml"], ["--config", "~/job.yaml"]):
        assert parsed(PATHS, *arguments).seed == 7


def test_a_file_for_a_section_next_to_a_configuration_in_the_home_folder(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write("training: training.yaml\n")
    write("max_steps: 7\n", "training.yaml")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parsed(PATHS, "--config=~/job.yaml").training.max_steps == 7
    assert refused(PATHS, "--training=~no_such_user/a.yaml").what.startswith("~no_such_user/a.yaml: Could not")


def test_an_empty_mapping_in_the_file_of_a_section(write: Callable[..., str]) -> None:
    assert parsed(PATHS, "--training", write("{}\n")) == parsed(PATHS)


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_the_suggestion_does_not_depend_on_the_run(seed: str) -> None:
    """Several sections have the field `alpha`."""
    known = {"b.alpha", "a.alpha", "c.alpha"}
    code = f"from adapt.parse.keys import unknown; print(unknown('', 'a_long_section.alphaa', {known}).fix)"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "did you mean a.alpha?\n"

"""From files and the command line to a configuration, and what is said when that fails."""

import ast
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.config import (
    Config,
    CorpusConfig,
    MethodConfig,
    ResourcesConfig,
    SourceConfig,
    TrainingConfig,
    continual,
    flat,
    job,
    measuring,
    running,
    tasks,
    text,
    training,
)
from adapt.errors import ConfigError
from adapt.job.registry import JOBS
from adapt.method import l2sp
from adapt.method.das import options as das_options
from adapt.method.das.options import DasOptions
from adapt.method.table import METHODS, method_class, option_sections
from adapt.parse import check_config, parse, parse_values

PATHS = "--corpus.paths=a"  # the one field that has to be given


def parsed(*arguments: str) -> Config:
    return parse(arguments, "jobs/dapt.py")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(content: str | bytes, name: str = "job.yaml") -> str:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(file)

    return write


def refused(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parsed(*arguments)
    assert "\n" not in caught.value.what  # one line
    assert caught.value.fix
    return caught.value


# --- what is understood


def test_nothing_but_the_corpus_gives_the_defaults() -> None:
    assert parsed(PATHS) == Config(corpus=CorpusConfig(paths="a"))


def test_fields_on_the_command_line() -> None:
    config = parsed(PATHS, "--training.learning_rate", "1e-4", "--seed=3", "--resources.zero_stage", "2")
    expected = TrainingConfig(learning_rate=1e-4), ResourcesConfig(zero_stage=2), 3
    assert (config.training, config.resources, config.seed) == expected


def test_fields_in_a_file(write: Callable[..., str]) -> None:
    file = write("seed: 3\ntraining:\n  learning_rate: 1.0e-4\n  max_steps: 10\ncorpus:\n  paths: [a, b]\n")
    config = parsed("--config", file)
    assert config.training == TrainingConfig(learning_rate=1e-4, max_steps=10)
    assert (config.seed, config.corpus.paths) == (3, ["a", "b"])
    assert parsed(f"--config={file}") == config


def test_dotted_keys_in_a_file(write: Callable[..., str]) -> None:
    config = parsed(PATHS, "--config", write("training.learning_rate: 0.1\ntraining.max_steps: 7\n"))
    assert config.training == TrainingConfig(learning_rate=0.1, max_steps=7)


def test_the_command_line_overrides_files_and_later_files_earlier_ones(write: Callable[..., str]) -> None:
    first = write("seed: 1\ntraining:\n  learning_rate: 0.1\n  max_steps: 1\n  beta1: 0.1\n", "first.yaml")
    second = write("training:\n  max_steps: 2\n  beta1: 0.2\n", "second.yaml")
    config = parsed("--config", first, "--config", second, PATHS, "--training.beta1", "0.3")
    assert config.training == TrainingConfig(learning_rate=0.1, max_steps=2, beta1=0.3)
    assert config.seed == 1


@pytest.mark.parametrize("text", ["5e-4", "5E-4", "5.0e-4", "0.0005", ".0005"])
def test_scientific_notation(write: Callable[..., str], text: str) -> None:
    for config in (
        parsed(PATHS, "--config", write(f"training:\n  learning_rate: {text}\n")),
        parsed(PATHS, "--training.learning_rate", text),
    ):
        assert config.training.learning_rate == 0.0005
        assert type(config.training.learning_rate) is float


def test_whole_numbers_for_real_fields_are_the_same_as_real_ones(write: Callable[..., str]) -> None:
    config = parsed(PATHS, "--config", write("training:\n  weight_decay: 0\n  epochs: 3\n"))
    assert (str(config.training.weight_decay), str(config.training.epochs)) == ("0.0", "3.0")  # else the keys differ


def test_values_are_plain_numbers() -> None:
    given = {"training.max_steps": "3", "training.epochs": "2", "training.learning_rate": "1", "training.beta1": "0"}
    config = parsed(PATHS, *(f"--{name}={value}" for name, value in given.items()))
    kinds = {type(value) for name, value in flat(config).items() if name != "select.options"}
    assert kinds <= {int, float, str, bool, type(None), list}  # what a stage's key takes


@pytest.mark.parametrize(
    ("given", "paths"), [("a", "a"), ("data/*.jsonl.gz", "data/*.jsonl.gz"), ("[a, b]", ["a", "b"]), ('["a"]', ["a"])]
)
def test_paths_are_one_or_a_list(write: Callable[..., str], given: str, paths: str | list[str]) -> None:
    assert parsed(f"--corpus.paths={given}").corpus.paths == paths
    assert parsed("--corpus.paths", given).corpus.paths == paths
    quoted = given if given.startswith("[") else repr(given)
    assert parsed("--config", write(f"corpus:\n  paths: {quoted}\n")).corpus.paths == paths


def test_paths_can_be_added_one_by_one() -> None:
    assert parsed("--corpus.paths+=a", "--corpus.paths+=b").corpus.paths == ["a", "b"]


def test_paths_on_the_command_line_replace_those_of_a_file(write: Callable[..., str]) -> None:
    assert parsed("--config", write("corpus:\n  paths: [a, b]\n"), "--corpus.paths=c").corpus.paths == "c"


def test_null_is_none(write: Callable[..., str]) -> None:
    file = write("training:\n  max_steps: 5\nresources:\n  gpus_per_worker: 1\n")
    config = parsed(PATHS, "--config", file, "--training.max_steps", "null", "--resources.gpus_per_worker=null")
    assert (config.training.max_steps, config.resources.gpus_per_worker) == (None, None)


def test_debug_is_no_field_of_the_job() -> None:
    assert parsed(PATHS, "--debug") == parsed(PATHS)


# --- what is refused


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


def test_a_key_like_no_other_points_to_the_help() -> None:
    error = refused(PATHS, "--xyzzy.plugh=1")
    assert (error.what, error.fix) == ("unknown key --xyzzy.plugh", "see --help for all keys")


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


WRONG = [
    ("training.learning_rate", "abc", "float"),
    ("training.max_steps", "1.5", "int or null"),
    ("training.max_steps", "many", "int or null"),
    ("seed", "1.5", "int"),
    ("resources.workers", "[1]", "int"),
    ("resources.zero_stage", "4", "0, 1, 2, 3"),
    ("training.precision", "fp8", "auto, fp32, bf16, fp16"),
    ("objective.kind", "clm", "mlm, whole_word, entity, span, causal or package.module:Class"),
]


@pytest.mark.parametrize(("field", "value", "kind"), WRONG)
def test_a_wrong_type_names_field_kind_and_value(write: Callable[..., str], field: str, value: str, kind: str) -> None:
    for arguments in ([f"--{field}={value}"], ["--config", write(f"{field}: {value}\n")]):
        error = refused(PATHS, *arguments)
        assert error.what == f"{field} takes {kind}, not {value}"
        assert "--help" in error.fix


RANGES = [
    ("training.learning_rate", "-1", ">0"),
    ("training.learning_rate", "0", ">0"),
    ("training.max_steps", "0", ">0"),
    ("training.max_tokens", "-5", ">0"),
    ("training.epochs", "0", ">0"),
    ("training.global_batch_size", "0", ">0"),
    ("training.weight_decay", "-0.1", ">=0"),
    ("training.warmup_fraction", "1.1", ">=0 and <=1"),
    ("corpus.near_ngram", "0", ">0"),
    ("corpus.heldout_fraction", "-0.1", ">=0 and <=1"),
    ("objective.mask_fraction", "0", ">0 and <1"),
    ("objective.mask_fraction", "1", ">0 and <1"),
    ("evaluation.bootstrap_samples", "0", ">0"),
    ("resources.workers", "0", ">0"),
    ("resources.wait_s", "-1", ">=0"),
]


@pytest.mark.parametrize(("field", "value", "rule"), RANGES)
def test_a_value_out_of_range_names_field_value_and_range(
    write: Callable[..., str], field: str, value: str, rule: str
) -> None:
    for arguments in ([f"--{field}={value}"], [f"--{field}", value], ["--config", write(f"{field}: {value}\n")]):
        error = refused(PATHS, *arguments)
        assert re.fullmatch(rf"{field} is {value}(\.0)?, but must be {rule}", error.what)


def test_the_ends_of_a_range() -> None:
    config = parsed(PATHS, "--training.warmup_fraction=1", "--training.weight_decay=0", "--training.max_steps=1")
    assert (config.training.warmup_fraction, config.training.weight_decay, config.training.max_steps) == (1, 0, 1)


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_numbers_must_be_finite(write: Callable[..., str], value: str) -> None:
    assert "training.learning_rate is" in refused(PATHS, f"--training.learning_rate={value}").what
    assert "training.epochs is" in refused(PATHS, "--config", write(f"training:\n  epochs: {value}\n")).what


@pytest.mark.parametrize("content", ["training:\n", "training: 5\n", "training: [1]\n", "seed: 1\ntraining: null\n"])
def test_a_section_must_hold_fields(write: Callable[..., str], content: str) -> None:
    file = write(content)
    assert refused(PATHS, "--config", file).what == f"training in {file} holds no fields"


BROKEN = [
    ("training: [1\nseed: 2\n", "line 2"),
    ("name: a\nseed: 1: 2\n", "line 2"),
    ("name: a\n\tseed: 1\n", "line 2"),
    ('name: "a\nseed: 1\n', "line 3"),
    (b"name: a\nseed: \xff\n", "utf-8"),
]


@pytest.mark.parametrize(("content", "place"), BROKEN)
def test_a_file_that_is_no_yaml_is_named_with_the_line(
    write: Callable[..., str], content: str | bytes, place: str
) -> None:
    file = write(content)
    error = refused(PATHS, "--config", file)
    assert error.what.startswith(f"{file} is not valid YAML: ")
    assert place in error.what


@pytest.mark.parametrize("content", ["", "# only this\n", "- a\n- b\n", "text\n", "7\n"])
def test_a_file_without_keys_is_named(write: Callable[..., str], content: str) -> None:
    file = write(content)
    assert refused(PATHS, "--config", file).what == f"{file} holds no `key: value` lines"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.yaml")
    for arguments in (["--config", gone], [f"--config={gone}"]):
        assert refused(PATHS, *arguments).what == f"{gone}: No such file or directory"
    assert refused("--config", str(tmp_path)).what == f"{tmp_path}: Is a directory"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["job.yaml"], "unrecognized arguments: job.yaml"),
        (["-x"], "unrecognized arguments: -x"),
        (["--training.learning_rate"], "--training.learning_rate: expected one argument"),
        (["--training", '{"learning_rat": 1}'], "'training' does not accept option 'learning_rat'"),
    ],
)
def test_arguments_that_mean_nothing(arguments: list[str], message: str) -> None:
    assert message in refused(PATHS, *arguments).what


def test_a_wrong_type_in_a_list_names_the_entry_s_field(write: Callable[..., str]) -> None:
    task = "tasks: [{name: a, kind: single, train: a, dev: b, test: c}]\n"
    error = refused(PATHS, "--config", write(task))
    assert error.what == "tasks, in an entry: kind takes single_label, multi_label, tokens, not single"


def test_the_keys_of_a_source_s_own_evaluation_sets(write: Callable[..., str]) -> None:
    source = "corpus:\n  sources: [{name: a, paths: b, decontaminate: [{name: c, pathz: d}]}]\n"
    assert (
        refused("--config", write(source)).what
        == "unknown key pathz in entry 1 of decontaminate in entry 1 of corpus.sources"
    )
    assert refused(*sources("{name: a, paths: b, decontaminate: [{name: c}]}")).what.endswith("has no paths")


def test_config_without_a_file() -> None:
    assert refused(PATHS, "--config").what == "--config names no file"


DOMAINS = "--corpus.sources=[{name: a, paths: a.txt}]"


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ([], 2580),
        (["--training.epochs=3"], None),
        (["--training.max_tokens", "1000000"], None),
        (["--training.max_tokens=null"], 2580),
        (["--training.epochs=3", "--training.epochs=null"], 2580),
        (["--training.epochs=3", "--training.max_steps=7"], 7),
    ],
)
def test_a_default_number_of_steps_gives_way_to_another_length(
    write: Callable[..., str], given: list[str], steps: int | None
) -> None:
    assert parse([DOMAINS, *given], "x", JOBS["sequence"].kind).training.max_steps == steps
    values = {name.removeprefix("--"): value for name, value in (each.split("=") for each in given if "=" in each)}
    if len(values) == len(given):
        read = {name: yaml.safe_load(value) for name, value in values.items()}
        assert (
            parse(["--config", write(yaml.safe_dump(read)), DOMAINS], "x", JOBS["sequence"].kind).training.max_steps
            == steps
        )
        chained = parse_values({**read, "corpus.sources": [{"name": "a", "paths": "a"}]}, JOBS["sequence"].kind, "here")
        assert chained.training.max_steps == steps


def test_a_sequence_needs_a_list_of_sources() -> None:
    with pytest.raises(ConfigError, match=r"corpus\.sources is empty"):
        parse([], "x", JOBS["sequence"].kind)


def sources(*entries: str) -> list[str]:
    return [f"--corpus.sources=[{', '.join(entries)}]"]


CONTRADICTIONS = [
    ([], "corpus.paths is empty"),
    (["--corpus.paths="], "corpus.paths is empty"),
    (["--corpus.paths=[]"], "corpus.paths is empty"),
    (["--corpus.source=docstrings", PATHS], "corpus.paths is set but corpus.source is docstrings"),
    (["--corpus.source=dataset"], "corpus.dataset is empty"),
    ([PATHS, "--corpus.dataset=a/b"], "corpus.dataset is set but corpus.source is files"),
    ([PATHS, *sources("{name: a, paths: b}")], "corpus.paths and corpus.sources are both set"),
    (sources("{name: a}"), "corpus.sources, a: paths is empty"),
    (
        sources("{name: a, source: docstrings, paths: b}"),
        "corpus.sources, a: paths is set but corpus.sources, a: source",
    ),
    (sources("{name: a, paths: b}", "{name: a, paths: c}"), "two of corpus.sources are called 'a'"),
    (sources("{name: a/b, paths: b}"), "the name 'a/b' cannot name a folder"),
    (sources("{name: a, paths: b, weight: -1}"), "corpus.sources, a: weight is -1"),
    (sources("{name: a, paths: b, weight: 0}"), "all weights are 0"),
    (sources("{name: a, paths: b, weight: 1}", "{name: b, paths: c}"), "corpus.sources: no weight for b"),
    ([PATHS, "--corpus.heldout_fraction=1"], "corpus.heldout_fraction 1 leaves nothing to train on"),
    (
        [PATHS, "--objective.mask_token_fraction=0.9", "--objective.random_token_fraction=0.2"],
        "objective.mask_token_fraction and objective.random_token_fraction add up to 1.1",
    ),
    ([PATHS, "--objective.kind=entity"], "neither of objective.entity_field and objective.tagger is set"),
    (
        [PATHS, "--objective.kind=entity", "--objective.entity_field=names", "--objective.tagger=a:b"],
        "both of objective.entity_field and objective.tagger are set",
    ),
    ([PATHS, "--objective.tagger=a:b"], "objective.tagger is set but objective.kind is mlm"),
    (
        ["--corpus.source=docstrings", "--objective.kind=entity", "--objective.entity_field=names"],
        "objective.entity_field is set but docstrings have no fields",
    ),
    ([PATHS, "--name=a/b"], "name 'a/b' cannot name a folder"),
    ([PATHS, "--name="], "name '' cannot name a folder"),
    ([PATHS, "--name=.."], "name '..' cannot name a folder"),
    ([PATHS, f"--name={'x' * 300}"], "cannot name a folder"),
]


@pytest.mark.parametrize(("arguments", "message"), CONTRADICTIONS, ids=lambda value: str(value)[-40:])
def test_fields_that_contradict_each_other(arguments: list[str], message: str) -> None:
    assert message in refused(*arguments).what


def test_what_does_not_contradict() -> None:
    whole = ["--objective.mask_token_fraction=0.9", "--objective.random_token_fraction=0.1"]
    assert parsed(PATHS, *whole).objective.random_token_fraction == 0.1
    assert parsed("--corpus.source=docstrings").corpus.paths == []
    assert parsed(PATHS, "--objective.kind=entity", "--objective.tagger=a:b").objective.tagger == "a:b"
    assert parsed(PATHS, "--corpus.heldout_fraction=0").corpus.heldout_fraction == 0


def test_configurations_made_in_python_are_checked_as_well() -> None:
    check_config(Config(corpus=CorpusConfig(paths="a")))
    with pytest.raises(ConfigError, match=r"training\.learning_rate is -1"):
        check_config(Config(corpus=CorpusConfig(paths="a"), training=TrainingConfig(learning_rate=-1)))


# --- what is shown


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parsed(*arguments)
    assert caught.value.code == 0
    return capsys.readouterr().out


# One value a field that is not its default, where a file could mistake some for something else.
VALUES: dict[str, Any] = {
    "name": "123",
    "seed": -1,
    "model.path": "~/models/a: b #c",
    "model.revision": "0123456",
    "model.tokenizer": "null-ish",
    "model.trust_remote_code": True,
    "corpus.paths": ["a b/*.jsonl", "no", "[x]"],
    "corpus.text_field": "yes",
    "corpus.text_unit": "paragraph",
    "training.max_steps": 10,
    "training.max_tokens": 10**12,
    "training.epochs": 0.1,
    "training.learning_rate": 1e-7,
    "training.epsilon": 1.5e-300,
    "training.precision": "bf16",
    "evaluation.general_paths": "été.txt",
    "resources.address": "ray://1.2.3.4:10001",
    "resources.gpus_per_worker": 0.5,
    "resources.zero_stage": 3,
    "storage.root": "/a'b\"c",
    "tracking.mlflow_uri": "http://localhost:5000",
    "tracking.wandb_project": "ünïcode",
}


def test_what_print_config_prints_can_be_fed_back(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    nested: dict[str, Any] = {}
    for name, value in VALUES.items():
        *section, field = name.split(".")
        (nested.setdefault(section[0], {}) if section else nested)[field] = value
    file = write(json.dumps(nested))  # JSON is YAML, and quotes every string
    config = parsed("--config", file)
    assert {name: flat(config)[name] for name in VALUES} == VALUES
    shown = printed(capsys, "--config", file, "--print_config")
    assert parsed("--config", write(shown, "shown.yaml")) == config
    assert set(yaml.safe_load(shown)) == {field.name for field in fields(Config)} - {"method_options"} | {
        "debug",
        *option_sections("plain"),
    }


def test_print_config_shows_every_field_and_needs_no_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    shown = yaml.safe_load(printed(capsys, "--print_config"))
    names = {
        f"{section}.{field}" if isinstance(content, dict) else section
        for section, content in shown.items()
        for field in (content if isinstance(content, dict) else [None])
    }
    assert names == {*flat_with_methods(), "debug"}


def flat_with_methods() -> dict[str, Any]:
    """Every field by its dotted name, with the options of all methods."""
    found: dict[str, Any] = {}
    for kind in METHODS:
        options = method_class(kind).Options
        found |= flat(Config(method=MethodConfig(kind), method_options=options())) if options else {}
    return {**found, **flat(Config())}


def documentation() -> dict[str, str]:
    """The docstring below each field, by dotted name, read from the source."""
    modules = (continual, job, measuring, running, tasks, text, training, das_options, l2sp)
    classes = {
        node.name: node
        for module in modules
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }

    def documented(name: str, prefix: str) -> dict[str, str]:
        body = classes[name].body
        return {
            f"{prefix}{line.target.id}": below.value.value
            for line, below in pairwise(body)
            if isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        }

    found = documented("Config", "")
    for section, content in vars(Config()).items():
        if is_dataclass(content):
            found.update(documented(type(content).__name__, f"{section}."))
    for section, options in option_sections("plain").items():
        found.update(documented(options.__name__, f"{section}."))
    return {name: text for name, text in found.items() if name != "method_options"}


def test_help_lists_every_field_with_meaning_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    shown = printed(capsys, "--help")
    assert "Domain-adaptive pre-training" in shown
    entries = {entry.split()[0].rstrip(","): " ".join(entry.split()) for entry in shown.split("\n  --")[1:]}
    documented = documentation()
    assert set(documented) == set(flat_with_methods())
    for name, default in flat_with_methods().items():
        assert " ".join(documented[name].split()) in entries[name], name
        assert f"default: {'null' if default is None else default})" in entries[name], name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the length of the run is not"),
        (["--training.max_steps=5", "--training.epochs=1"], "a streamed corpus is passed through once"),
        (["--training.max_tokens=500", "--mixture.replay_paths=b.jsonl"], "a streamed corpus has one source"),
    ],
)
def test_what_streaming_needs(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(["--corpus.paths=a.jsonl", "--corpus.streaming=true", *arguments], "x")
    parse(["--corpus.paths=a.jsonl", "--corpus.streaming=true", "--training.max_tokens=500"], "x")


def test_a_job_that_streams_nothing_needs_nothing_for_it() -> None:
    task = [f"--task.{split}=a.jsonl" for split in ("train", "dev", "test")]
    parse(["--corpus.paths=a.jsonl", "--corpus.streaming=true", *task], "x", JOBS["tapt"].kind)


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ("corpus:\n  sources: [{name: a, paths: a.txt, weight: 1}]\n", "corpus.sources: weight"),
        ("corpus: {paths: a.txt}\nmixture: {temperature: 2}\n", "mixture.temperature"),
    ],
)
def test_sources_one_after_another_have_no_shares(write: Callable[..., str], lines: str, field: str) -> None:
    error = refused("--mixture.order=sequential", "--config", write(lines))
    assert field in error.what
    assert "interleaved" in error.fix


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("corpus:\n  paths: a\ntraining: {max_steps: 1}\nname: x\ncorpus:\n  paths: b\n")
    with pytest.raises(ConfigError, match=r"corpus stands twice in .*, in lines 1 and 5"):
        parsed("--config", str(file))
    file.write_text("corpus: {paths: a, sources: [{name: a, paths: x,\n name: b}]}\n")
    with pytest.raises(ConfigError, match=r"name stands twice in .*, in lines 1 and 2"):
        parsed("--config", str(file))
    file.write_text("corpus: &a {paths: a}\nmixture: {<<: {order: sequential}}\n")
    assert parsed("--config", str(file)).corpus.paths == "a"


# --- methods


def test_the_section_of_the_chosen_method_is_its_options(write: Callable[..., str]) -> None:
    file = write("method: {kind: das}\ndas: {soft_mask: gradient}\n")
    assert parsed(PATHS, "--config", file).method_options == DasOptions(soft_mask="gradient")
    assert parsed(PATHS, "--config", file, "--das.soft_mask=none").method_options == DasOptions(soft_mask="none")
    assert parse([DOMAINS], "x", JOBS["sequence"].kind).method_options == DasOptions()
    given = {"method.kind": "das", "das": {"soft_mask": "none"}, "corpus.paths": "a"}
    assert parse_values(given, JOBS["dapt"].kind, "here").method_options == DasOptions(soft_mask="none")


def test_sections_of_other_methods_are_checked_and_ignored() -> None:
    assert parsed(PATHS, "--das.soft_mask=gradient").method_options is None
    assert "das.importance_batch is 0" in refused(PATHS, "--das.importance_batch=0").what
    assert "did you mean das.soft_mask?" in refused(PATHS, "--das.soft_mosk=none").fix
    assert "l2sp.alpha is -1" in refused(PATHS, "--method.kind=das", "--l2sp.alpha=-1").what
    assert refused(PATHS, "--method_options=1").what.startswith("unknown key")
    assert refused(PATHS, "--method.kind=dos").fix == "did you mean das?"


def test_a_users_own_method_has_a_section(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(OWN, "my_methods.py")
    monkeypatch.syspath_prepend(tmp_path)
    file = write("method: {kind: 'my_methods:PullBack'}\npull_back: {strength: 3}\n")
    found = parsed(PATHS, "--config", file)
    assert found.method_options.strength == 3.0
    assert flat(found)["pull_back.strength"] == 3.0
    given = [PATHS, "--method.kind=my_methods:PullBack"]
    assert "pull_back.strength is -1" in refused(*given, "--pull_back.strength=-1").what
    assert "did you mean pull_back.strength?" in refused(*given, "--pull_back.strenght=1").fix
    with pytest.raises(SystemExit):
        parsed(*given, "--help")
    assert "How strong." in capsys.readouterr().out
    assert "unknown key" in refused(PATHS, "--pull_back.strength=1").what


OWN = '''
from __future__ import annotations

from dataclasses import dataclass

from adapt.config import NonNegativeFloat
from adapt.method.base import Method


@dataclass(frozen=True)
class PullBackOptions:
    """Mine."""

    strength: NonNegativeFloat = 1.0
    """How strong."""


class PullBack(Method):
    """Mine."""

    Options = PullBackOptions
'''

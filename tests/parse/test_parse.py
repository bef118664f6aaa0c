"""A configuration is read from files and the command line."""

from collections.abc import Callable

import pytest
import yaml

from adapt.config import Config, CorpusConfig, ModelConfig, ResourcesConfig, TrainingConfig, flat
from adapt.job import JOBS
from adapt.objective.table import OBJECTIVES
from adapt.parse import parse, parse_values
from tests.parse.calls import DOMAINS, PATHS, parsed, refused


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
    assert parsed("--training.beta1", "0.3", "--config", first, PATHS, "--config", second) == config


@pytest.mark.parametrize("text", ["5e-4", "5E-4", "5.0e-4", "0.0005", ".0005"])
def test_scientific_notation(write: Callable[..., str], text: str) -> None:
    for config in (
        parsed(PATHS, "--config", write(f"training:\n  learning_rate: {text}\n")),
        parsed(PATHS, "--training.learning_rate", text),
    ):
        assert config.training.learning_rate == 0.0005
        assert type(config.training.learning_rate) is float


def test_integers_in_float_fields_equal_floats(write: Callable[..., str]) -> None:
    config = parsed(PATHS, "--config", write("training:\n  weight_decay: 0\n  epochs: 3\n"))
    # Keys depend on the text form of numbers.
    assert (str(config.training.weight_decay), str(config.training.epochs)) == ("0.0", "3.0")


def test_values_are_plain_numbers() -> None:
    given = {"training.max_steps": "3", "training.epochs": "2", "training.learning_rate": "1", "training.beta1": "0"}
    config = parsed(PATHS, *(f"--{name}={value}" for name, value in given.items()))
    kinds = {type(value) for value in flat(config).values()}
    assert kinds <= {int, float, str, bool, type(None), list}  # Keys of stages can only be computed from these types.


@pytest.mark.parametrize(
    ("given", "paths"), [("a", "a"), ("data/*.jsonl.gz", "data/*.jsonl.gz"), ("[a, b]", ["a", "b"]), ('["a"]', ["a"])]
)
def test_paths_are_one_or_a_list(write: Callable[..., str], given: str, paths: str | list[str]) -> None:
    assert parsed(f"--corpus.paths={given}").corpus.paths == paths
    assert parsed("--corpus.paths", given).corpus.paths == paths
    quoted = given if given.startswith("[") else repr(given)
    assert parsed("--config", write(f"corpus:\n  paths: {quoted}\n")).corpus.paths == paths


@pytest.mark.parametrize("path", ["docs #2/a.txt", "a: b/a.txt", "#2.txt", "12", "no", " a", "a\nb"])
def test_a_path_on_the_command_line_is_not_read_as_yaml(path: str) -> None:
    assert parsed(f"--corpus.paths={path}", f"--model.path={path}") == Config(
        corpus=CorpusConfig(paths=path), model=ModelConfig(path=path)
    )
    assert parsed(PATHS, "--model.path='papers'").model.path == "papers"


def test_paths_on_the_command_line_replace_those_of_a_file(write: Callable[..., str]) -> None:
    assert parsed("--config", write("corpus:\n  paths: [a, b]\n"), "--corpus.paths=c").corpus.paths == "c"


def test_null_is_none(write: Callable[..., str]) -> None:
    file = write("training:\n  max_steps: 5\nresources:\n  gpus_per_worker: 1\n")
    config = parsed(PATHS, "--config", file, "--training.max_steps", "null", "--resources.gpus_per_worker=null")
    assert (config.training.max_steps, config.resources.gpus_per_worker) == (None, None)


def test_debug_is_not_a_field() -> None:
    assert parsed(PATHS, "--debug") == parsed(PATHS)


WRONG = [
    ("training.learning_rate", "abc", "float"),
    ("training.max_steps", "1.5", "int or null"),
    ("training.max_steps", "many", "int or null"),
    ("seed", "1.5", "int"),
    ("resources.workers", "[1]", "int or [int, int]"),
    ("resources.workers", "few", "int or [int, int]"),
    ("resources.zero_stage", "4", "0, 1, 2, 3"),
    ("training.precision", "fp8", "auto, fp32, bf16, fp16"),
]


@pytest.mark.parametrize(("field", "value", "kind"), WRONG)
def test_a_wrong_type_names_field_kind_and_value(write: Callable[..., str], field: str, value: str, kind: str) -> None:
    for arguments in ([f"--{field}={value}"], ["--config", write(f"{field}: {value}\n")]):
        error = refused(PATHS, *arguments)
        assert error.what == f"{field} takes {kind}, not {value}"
        assert "--help" in error.fix


def test_an_objective_that_does_not_exist_is_refused(write: Callable[..., str]) -> None:
    for name, fix in (
        ("whole_wrd", "did you mean whole_word?"),
        ("xyz", f"use {', '.join(sorted(OBJECTIVES))}"),
    ):
        error = refused(PATHS, "--config", write(f"objective.kind: {name}\n"))
        assert error.what == f"objective.kind: there is no {name!r}"
        assert error.fix.startswith(fix)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["job.yaml"], "unrecognized arguments: job.yaml"),
        (["-x"], "unrecognized arguments: -x"),
        (["--training.learning_rate"], "--training.learning_rate: expected one argument"),
        (["--training", '{"learning_rat": 1}'], "unknown key training.learning_rat in the command line"),
    ],
)
def test_unreadable_arguments_are_refused(arguments: list[str], message: str) -> None:
    assert message in refused(PATHS, *arguments).what


@pytest.mark.parametrize(
    ("arguments", "stray"),
    [
        (["--corpus.paths", *"abcde"], "b"),
        (["--task.train", "a", "b", "--name", "x"], "b"),
        (["--corpus.paths=a", "b"], "b"),
        (["a.yaml"], "a.yaml"),
        (["--debug", "b"], "b"),
    ],
)
def test_file_names_from_an_unquoted_pattern_are_refused_with_advice(arguments: list[str], stray: str) -> None:
    error = refused(*arguments)
    assert error.what == f"unrecognized arguments: {stray}"
    assert "quote a pattern" in error.fix


def test_negative_numbers_are_values() -> None:
    assert "learning_rate" in refused(PATHS, "--training.learning_rate", "-1").what


def test_a_wrong_type_in_a_list_names_the_entry_s_field(write: Callable[..., str]) -> None:
    task = "tasks: [{name: a, kind: single, train: a, dev: b, test: c}]\n"
    error = refused(PATHS, "--config", write(task))
    assert error.what == "tasks, entry 1, kind takes single_label, multi_label, tokens, not single"


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


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("name: 2024", "in quotes"),
        ("name: no", "in quotes"),
        ("model.revision: 12e45", "in quotes"),
        ("training.max_steps: 1e3", "write it as a whole number: 1000"),
        ("training.max_tokens: 10M", "in digits"),
        ("training.max_tokens: 1,000", "in digits"),
        ("training.warmup_fraction: 5%", "in digits"),
        ("training.optimizer: AdamW", "did you mean adamw?"),
        ("training.precision: BF16", "did you mean bf16?"),
        ("training.micro_batch: Auto", "did you mean auto?"),
        ("training.compile: 1", "write true or false"),
        ("finetune.seeds: 5", "write a list: [5]"),
        ("dsir.weight: Sum", "did you mean sum?"),
    ],
)
def test_messages_suggest_a_fix_for_a_wrong_type(write: Callable[..., str], given: str, fix: str) -> None:
    error = refused(PATHS, "--config", write(given + "\n"))
    assert " takes " in error.what
    assert error.fix.startswith(fix) or fix in error.fix
    assert "--help" in error.fix


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("name: 12:30", "name", "12:30"),
        ("name: 2024-01-05", "name", "2024-01-05"),
        ("model.revision: 0012345", "model.revision", "0012345"),
        ("training.max_steps: 010", "training.max_steps", 10),
        ("training.max_steps: 1_000", "training.max_steps", 1000),
        ("training.compile: yes", "training.compile", True),
        ("select: {kind: dsir, pool_paths: a}\ndsir: {noise: 1e-4}", "dsir.noise", 1e-4),
        ("hat: {on: model}\nmethod: {kind: hat}", "hat.on", "model"),
    ],
)
def test_unusual_spellings_of_values_are_read_as_meant(
    write: Callable[..., str], given: str, name: str, value: object
) -> None:
    found = flat(parsed(PATHS, "--config", write(given + "\n")))[name]
    assert (found, type(found)) == (value, type(value))

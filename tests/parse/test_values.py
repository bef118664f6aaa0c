"""Values out of range and fields that contradict each other are refused."""

import re
from collections.abc import Callable

import pytest

from adapt.config import Config, CorpusConfig, TrainingConfig
from adapt.job import JOBS
from adapt.parse import check_config, parse
from adapt.support.errors import ConfigError
from tests.parse.calls import PATHS, parsed, refused, sources

RANGES = [
    ("training.learning_rate", "-1", ">0"),
    ("training.learning_rate", "0", ">0"),
    ("training.max_steps", "0", ">0"),
    ("training.max_tokens", "-5", ">0"),
    ("training.epochs", "0", ">0"),
    ("training.global_batch_size", "0", ">0"),
    ("training.weight_decay", "-0.1", ">=0"),
    ("training.warmup_fraction", "1.1", ">=0 and <=1"),
    ("corpus.near_threshold", "0", ">0 and <1"),
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


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("[3,1]", "write it as [1, 3]"),
        ("[0,3]", "use a range such as [1, 4]"),
        ("[-2,-1]", "use a range such as [1, 4]"),
    ],
)
def test_workers_from_few_to_many(write: Callable[..., str], given: str, fix: str) -> None:
    for arguments in ([f"--resources.workers={given}"], ["--config", write(f"resources.workers: {given}\n")]):
        error = refused(PATHS, *arguments)
        assert error.what.startswith(f"resources.workers is {given.replace(',', ', ')}, but must be [minimum, maximum]")
        assert fix in error.fix
    for right, read in (("[1,3]", (1, 3)), ("[2, 2]", (2, 2)), ("3", 3)):
        assert parsed(PATHS, f"--resources.workers={right}").resources.workers == read


def test_the_ends_of_a_range() -> None:
    config = parsed(PATHS, "--training.warmup_fraction=1", "--training.weight_decay=0", "--training.max_steps=1")
    assert (config.training.warmup_fraction, config.training.weight_decay, config.training.max_steps) == (1, 0, 1)


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_numbers_must_be_finite(write: Callable[..., str], value: str) -> None:
    assert "training.learning_rate is" in refused(PATHS, f"--training.learning_rate={value}").what
    assert "training.epochs is" in refused(PATHS, "--config", write(f"training:\n  epochs: {value}\n")).what


def test_a_sequence_needs_a_list_of_sources() -> None:
    with pytest.raises(ConfigError, match=r"corpus\.sources is empty"):
        parse([], "x", JOBS["sequence"].kind)


CONTRADICTIONS = [
    ([], "corpus.paths is empty"),
    (["--corpus.paths="], "corpus.paths has no value"),
    (["--corpus.paths=[]"], "corpus.paths is empty"),
    (["--corpus.source=docstrings", PATHS], "corpus.paths is set but corpus.source is docstrings"),
    (["--corpus.source=dataset"], "corpus.dataset is empty"),
    ([PATHS, "--corpus.packages=[numpy]"], "corpus.packages is set but corpus.source is files"),
    ([PATHS, "--corpus.dataset=a/b"], "corpus.dataset is set but corpus.source is files"),
    ([PATHS, *sources("{name: a, paths: b}")], "corpus.paths and corpus.sources are both set"),
    (sources("{name: a}"), "corpus.sources, a: paths is empty"),
    (
        sources("{name: a, source: docstrings, paths: b}"),
        "corpus.sources, a: paths is set but corpus.sources, a: source",
    ),
    (sources("{name: a, paths: b}", "{name: a, paths: c}"), "two of corpus.sources are called 'a'"),
    (sources("{name: a/b, paths: b}"), "the name 'a/b' cannot be the name of a folder"),
    (sources("{name: a, paths: b, weight: -1}"), "corpus.sources, entry 1, weight is -1"),
    (sources("{name: a, paths: b, weight: 0}"), "all weights are 0"),
    (sources("{name: a, paths: b, weight: 1}", "{name: b, paths: c}"), "corpus.sources: no weight for b"),
    ([PATHS, "--corpus.heldout_fraction=1"], "corpus.heldout_fraction 1 leaves nothing to train on"),
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
    ([PATHS, "--name=a/b"], "name 'a/b' cannot be the name of a folder"),
    ([PATHS, "--name="], "name has no value"),
    ([PATHS, "--name=.."], "name '..' cannot be the name of a folder"),
    ([PATHS, "--name=a\nb"], "cannot be the name of a folder"),
    ([PATHS, "--seed=9223372036854775808"], "seed is 9223372036854775808, but must fit in a signed 64-bit integer"),
    ([PATHS, "--training.max_tokens=9223372036854775808"], "must fit in a signed 64-bit integer"),
    ([PATHS, f"--name={'x' * 300}"], "cannot be the name of a folder"),
]


@pytest.mark.parametrize(("arguments", "message"), CONTRADICTIONS, ids=lambda value: str(value)[-40:])
def test_fields_that_contradict_each_other(arguments: list[str], message: str) -> None:
    assert message in refused(*arguments).what


def test_the_fix_for_missing_entities_names_a_class() -> None:
    assert "module:Class" in refused(PATHS, "--objective.kind=entity").fix


def test_the_fix_for_a_source_without_text_names_a_field_of_the_source() -> None:
    assert refused(*sources("{name: a}")).fix == "name the corpus files: `paths: data/*.jsonl.gz`"
    assert refused(*sources("{name: a, source: dataset}")).fix == "name a dataset: `dataset: owner/name`"
    assert "--corpus.paths" in refused().fix


def test_fields_that_do_not_contradict_each_other() -> None:
    assert parsed("--corpus.source=docstrings").corpus.paths == []
    assert parsed(PATHS, "--objective.kind=entity", "--objective.tagger=a:b").objective.tagger == "a:b"
    assert parsed(PATHS, "--corpus.heldout_fraction=0").corpus.heldout_fraction == 0


def test_configurations_made_in_python_are_checked_as_well() -> None:
    check_config(Config(corpus=CorpusConfig(paths="a")))
    with pytest.raises(ConfigError, match=r"training\.learning_rate is -1"):
        check_config(Config(corpus=CorpusConfig(paths="a"), training=TrainingConfig(learning_rate=-1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the length of the run is not"),
        (["--training.max_steps=5", "--training.epochs=1"], "a streamed corpus is read only once"),
        (["--training.max_tokens=500", "--mixture.replay_paths=b.jsonl"], "a streamed corpus has one source"),
    ],
)
def test_streaming_requires_a_length_and_one_source(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(["--corpus.paths=a.jsonl", "--corpus.streaming=true", *arguments], "x")
    parse(["--corpus.paths=a.jsonl", "--corpus.streaming=true", "--training.max_tokens=500"], "x")


def test_jobs_that_do_not_stream_ignore_the_requirements() -> None:
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

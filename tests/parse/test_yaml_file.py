"""Empty values and unexpanded shell variables are refused. The message names the field."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.config import Config, EvaluationSet, NamedModel, SourceConfig, TaskConfig, TrainingConfig, flat
from adapt.job import JOBS
from adapt.parse import check_config, parse
from adapt.parse.keys import TABLES, option_sections, refuse_unknown_values
from adapt.parse.yaml_file import load_yaml
from adapt.support.errors import ConfigError
from adapt.tuning.search_checks import read_space
from tests.parse.calls import PATHS, parsed, refused


def fields_of_all_sections() -> dict[str, bool]:
    """Returns whether each field accepts None, keyed by dotted name. Options of methods and selections are included."""
    sections = {each.name: type(getattr(Config(), each.name)) for each in fields(Config)}
    found = {name: False for name in flat(Config()) if "." not in name}
    for section, kind in {**sections, **option_sections()}.items():
        if hasattr(kind, "__dataclass_fields__"):
            for each in fields(kind):
                has_null = "None" in each.type if isinstance(each.type, str) else NoneType in get_args(each.type)
                found[f"{section}.{each.name}"] = has_null
    return found


FIELDS = fields_of_all_sections()
WITHOUT_NULL = [name for name, has_null in FIELDS.items() if not has_null]
TASK = "task: {train: a, dev: b, test: c}\n"


def refusal(arguments: list[str], job: str = "dapt") -> str:
    with pytest.raises(ConfigError) as caught:
        parse(arguments, f"jobs/{job}.py", JOBS[job].kind)
    assert caught.value.fix
    return caught.value.what


def test_most_fields_do_not_accept_null() -> None:
    assert len(WITHOUT_NULL) > 140
    assert len(FIELDS) - len(WITHOUT_NULL) > 30


def test_every_field_that_has_no_null_is_refused_by_name_and_line(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    for number, name in enumerate(WITHOUT_NULL):
        section, _, field = name.partition(".")
        blank = ("", " null", " ~")[number % 3]
        file.write_text(f"# a comment\n{section}:\n  {field}:{blank}\n" if field else f"# a comment\n{name}:{blank}\n")
        assert refusal(["--config", str(file)]) == f"{name} has no value"
        file.write_text(f"{name}:\n")
        assert refusal([f"--config={file}"]) == f"{name} has no value"


def test_blank_fields_are_refused_on_the_command_line() -> None:
    for name in WITHOUT_NULL:
        section, _, field = name.partition(".")
        forms = [[f"--{name}", "null"], [f"--{name}="], [f"--{name}", ""], [f"--{name}=null", "--debug"]]
        for arguments in forms + ([[f"--{section}", f"{{{field}: }}"]] if field else []):
            assert refusal(arguments) == f"{name} has no value"


@pytest.mark.parametrize("job", JOBS)
def test_blank_fields_are_refused_in_all_jobs(tmp_path: Path, job: str) -> None:
    file = tmp_path / "job.yaml"
    for name in WITHOUT_NULL:
        file.write_text(f"{name}:\n")
        assert refusal(["--config", str(file)], job) == f"{name} has no value"


@pytest.mark.parametrize("above", ["common", "stages"])
def test_blank_fields_are_refused_in_a_chain_file(tmp_path: Path, above: str) -> None:
    file = tmp_path / "chain.yaml"
    for name in WITHOUT_NULL:
        section, _, field = name.partition(".")
        inside = f"{section}:\n      {field}:\n" if field else f"{name}:\n"
        if above == "common":
            file.write_text(f"common:\n    {inside}stages: {{a: {{job: dapt}}}}\n")
        else:
            file.write_text(f"stages:\n  a:\n    job: dapt\n    {inside}")
        with pytest.raises(ConfigError) as caught:
            expand_chain(read_chain(str(file)))
        assert caught.value.what == f"a in {file}: {name} has no value"


def test_fields_that_accept_null_can_be_null(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    for name in (name for name, has_null in FIELDS.items() if has_null):
        section, _, field = name.partition(".")
        naming = next((f"--{field}={section}" for field, table in TABLES.items() if section in table), "--seed=0")
        file.write_text(
            f"corpus: {{paths: a}}\n{section}:\n  {field}: null\n"
            if section != "corpus"
            else f"corpus:\n  paths: a\n  {field}:\n"
        )
        given = flat(parse(["--config", str(file), naming, "--select.pool_paths=a"], "x"))
        assert given[name] is None


def test_later_files_are_checked_too(write: Callable[..., str]) -> None:
    first = write("training: {max_steps: 2}\n", "first.yaml")
    second = write("training:\n  learning_rate:\n", "second.yaml")
    assert refused(PATHS, "--config", first, "--config", second).what == ("training.learning_rate has no value")


ENTRIES = {
    "corpus.sources": (SourceConfig, "name: a, paths: b"),
    "corpus.decontaminate": (EvaluationSet, "name: a, paths: b"),
    "comparison.models": (NamedModel, "name: a, path: b"),
    "tasks": (TaskConfig, "name: a, train: b, dev: c, test: d"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_blank_fields_in_list_entries_are_refused(write: Callable[..., str], name: str) -> None:
    kind, given = ENTRIES[name]
    entry: dict[str, Any] = load_yaml(f"{{{given}}}")
    types = get_type_hints(kind)
    for each in fields(kind):
        if NoneType not in get_args(types[each.name]):
            lines = "".join(f"    {key}: {value}\n" for key, value in entry.items() if key != each.name)
            file = write(f"{name}:\n  - {each.name}:\n{lines}")
            assert refused("--config", file).what == f"{name}, entry 1, {each.name} has no value"


OPTIONS = [
    "dsir:\n  ngram:\n",
    "static:\n  smoothing:\n",
    "corpus.paths:\n  - a\n  -\n",
    "resources.workers: [1,\n null]\n",
]


@pytest.mark.parametrize("content", OPTIONS)
def test_options_of_plug_ins_and_items_of_lists(write: Callable[..., str], content: str) -> None:
    assert re.search(r"has no value$|takes .*, not .*None", refused("--config", write(content)).what)


def test_options_may_be_null_where_that_is_written_out(write: Callable[..., str]) -> None:
    block = parsed(PATHS, "--config", write("corpus:\n  cleaning: [{length: {max_words: null}}, letters: ]\n"))
    assert block.corpus.cleaning == [{"length": {"max_words": None}}, {"letters": None}]


def test_blank_fields_in_a_file_for_one_section(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    write("learning_rate:\n", "training.yaml")
    assert refused(PATHS, "--training", "training.yaml").what == "training.learning_rate has no value"


def test_a_placeholder_without_a_value_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    sets = "sets: {recipe: {a: {rate: null}}}\nlet: {data: }\n"
    file.write_text(f"{sets}stages: {{s: {{job: dapt, for: recipe, training.learning_rate: '{{recipe.rate}}'}}}}\n")
    with pytest.raises(ConfigError, match=r"s\[a\] in .*: training\.learning_rate has no value"):
        expand_chain(read_chain(str(file)))
    file.write_text(f"{sets}stages: {{s: {{job: dapt, corpus.paths: '{{data}}/x'}}}}\n")
    with pytest.raises(ConfigError, match=r"\{data\} in s in .* has no value"):
        expand_chain(read_chain(str(file)))


@pytest.mark.parametrize("key", ["name", "baseline"])
def test_blank_keys_of_a_chain_file_are_refused(tmp_path: Path, key: str) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(f"{key}:\nstages: {{s: {{job: dapt}}}}\n")
    with pytest.raises(ConfigError, match=rf"^{key} in .* has no value"):
        read_chain(str(file))


def test_blank_values_in_a_search_space_are_refused(write: Callable[..., str]) -> None:
    file = write("training.max_steps: [1, 2]\ntraining.learning_rate:\n")
    with pytest.raises(ConfigError, match=rf"training.learning_rate in {file} has no value"):
        read_space(file)


def test_blank_values_in_python_are_refused() -> None:
    none: Any = None
    with pytest.raises(ConfigError, match=r"training\.learning_rate has no value"):
        check_config(Config(training=TrainingConfig(learning_rate=none)))
    with pytest.raises(ConfigError, match=r"^name has no value"):
        check_config(Config(name=none))


VARIABLES = ["$HOME/a.jsonl", "${HOME}/a.jsonl", "$data/*.jsonl", "s3://${BUCKET}/a.jsonl", "${oc.env:DATA}/x"]


@pytest.mark.parametrize("value", VARIABLES)
def test_variables_of_the_shell_are_not_expanded(write: Callable[..., str], value: str) -> None:
    variable = value[value.index("$") :].partition("/")[0]
    for field in ("corpus.paths", "storage.root", "model.path"):
        section, _, name = field.partition(".")
        file = write(f"{section}:\n  {name}: {value!r}\n")
        error = refused("--config", file)
        assert error.what.startswith(f"{field} in {file} is {value}, but {variable} is not expanded")
        assert f'--{field} "{value}"' in error.fix
    assert "is not expanded" in refused(f"--corpus.paths={value}").what
    assert "is not expanded" in refused(f"--corpus.sources=[{{name: a, paths: [b, {value!r}]}}]").what


def test_a_dollar_sign_without_a_variable_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "$HOME.jsonl"
    file.write_text("{}")
    assert parsed(f"--corpus.paths={file}").corpus.paths == str(file)
    assert parsed("--corpus.paths=https://host/a?$format=x").corpus.paths == "https://host/a?$format=x"
    assert parsed(PATHS, "--corpus.text_field=$oid").corpus.text_field == "$oid"
    assert parsed("--corpus.paths=a$").corpus.paths == "a$"


def test_unknown_keys_come_first(write: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        refuse_unknown_values({"training": {"learning_rat": None}}, "here")
    assert refused("--config", write("training:\n  learning_rat:\n")).what.startswith("unknown key")

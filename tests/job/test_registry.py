"""Tests that parsing, help, plans, chains and reports use the table of jobs. No other code may list the jobs."""

import ast
import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.chain.chain_file import read_chain, read_job
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import build_chain
from adapt.cli.chain_command import main
from adapt.config import Config, flat
from adapt.config.job_config import DAPT, Kind
from adapt.job import JOBS, job_of
from adapt.job.job_run import Job, carry_out
from adapt.parse import parse, parse_values
from adapt.runner import Finished, Stage, ensure
from adapt.runner.record import Record
from adapt.show.blocks import Block, TextBlock
from adapt.stage.context import Context
from adapt.stage.text_sources import Listing, listed_files
from adapt.support.errors import ConfigError
from adapt.terminal.console import attempt
from tests.samples import labelled, sentences, write

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    *("dapt", "tapt", "select", "sequence", "merge", "ensemble", "distil"),
    *("finetune", "evaluate", "similarity", "vocabulary", "advise"),
]
TEXT = ("dapt", "sequence", "ensemble", "distil", "evaluate", "similarity", "vocabulary", "advise")
"""Jobs that need the text of a corpus."""


@pytest.fixture
def fields(tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns fields that make the configuration of any job complete, except for the corpus."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("one", "two")):
        write(tmp_path / f"{name}.jsonl", [{"text": text} for text in sentences(20, number)])
    for split in ("train", "dev", "test"):
        write(tmp_path / f"{split}.jsonl", labelled(8, len(split)))
    return {
        "model.path": str(tiny_bert),
        "task": {"name": "toy", **{split: f"{split}.jsonl" for split in ("train", "dev", "test")}, "domain": "one"},
        "training.sequence_length": 64,
        "evaluation.sequence_length": 64,
        "merge": {"models": [str(tiny_bert)]},
        "ensemble": {"models": [str(tiny_bert), f"{tiny_bert}/"]},
        "distill": {"teachers": [str(tiny_bert)]},
        "storage.root": str(tmp_path / "runs"),
    }


def given(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that a job needs, with a corpus if the job reads one."""
    sources = [{"name": source, "paths": f"{source}.jsonl"} for source in ("one", "two")]
    pool = {"select.pool_paths": "one.jsonl", "select.documents": 3}
    return fields | ({"corpus.sources": sources} if name in TEXT else {}) | (pool if name == "select" else {})


def arguments(values: dict[str, Any]) -> list[str]:
    return [f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]


# --- the table of jobs


def test_the_table_lists_these_jobs() -> None:
    assert list(JOBS) == NAMES
    assert all(job.name == name == job.kind.name for name, job in JOBS.items())
    assert len({job.kind.description for job in JOBS.values()}) == len(NAMES)
    assert JOBS["dapt"].kind is DAPT  # the parser's parameter `kind` has the default `DAPT`


@pytest.mark.parametrize("name", NAMES)
def test_a_job_has_a_script_of_its_name_that_carries_it_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {file.stem for file in (ROOT / "jobs").glob("*.py")}
    assert scripts == {*NAMES, "chain", "tune"}
    done: list[tuple[Job, list[str]]] = []
    monkeypatch.setattr("adapt.cli.main.carry_out", lambda job, given: done.append((job, list(given))))
    monkeypatch.setattr("adapt.cli.main.run_job", lambda job: job())
    monkeypatch.setattr(sys, "path", [str(ROOT / "jobs"), *sys.path])
    monkeypatch.setattr(sys, "argv", [f"jobs/{name}.py", "--seed=3"])
    source = (ROOT / "jobs" / f"{name}.py").read_text(encoding="utf-8")
    exec(compile(source, f"jobs/{name}.py", "exec"), {"__name__": "__main__"})
    assert done == [(JOBS[name], ["--seed=3"])]


def test_no_other_code_lists_the_jobs() -> None:
    """A literal that contains three names of jobs counts as a list of jobs."""
    lists = []
    for file in sorted((ROOT / "adapt").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            words = {part.value for part in parts if isinstance(part, ast.Constant)}
            if len(words & {*NAMES}) >= 3:
                lists.append(f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    assert lists == []


# --- code that reads the table of jobs


@pytest.mark.parametrize("name", NAMES)
def test_parsing_uses_the_defaults_and_requirements_of_the_job(name: str, fields: dict[str, Any]) -> None:
    kind = JOBS[name].kind
    config = parse(arguments(given(name, fields)), f"jobs/{name}.py", kind)
    assert config == parse_values(given(name, fields), kind, "here")
    found = flat(config)
    unset = {field: value for field, value in kind.defaults.items() if field not in fields}
    assert {field: found[field] for field in unset} == unset
    for needed, without in ((kind.task, "task"), (kind.corpus, "corpus.sources")):
        left = {field: value for field, value in given(name, fields).items() if field != without}
        if needed:
            with pytest.raises(ConfigError, match=without.partition(".")[0]):
                parse(arguments(left), "", kind)


@pytest.mark.parametrize("name", NAMES)
def test_help_describes_the_job(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind = JOBS[name].kind
    with pytest.raises(SystemExit) as caught:
        parse(["--help"], f"jobs/{name}.py", kind)
    shown = together(capsys.readouterr().out)
    assert caught.value.code == 0
    assert together(f"usage: jobs/{name}.py [--config FILE]") in shown
    assert together(kind.description) in shown


def together(text: str) -> str:
    """Removes spaces and line breaks, which depend on the width of the terminal."""
    return "".join(text.split())


def chain_of(jobs: list[str], fields: dict[str, Any], folder: Path) -> str:
    own = {job: {name: value for name, value in given(job, fields).items() if name not in COMMON} for job in jobs}
    entries = {f"my-{job}": {"job": job, **values} for job, values in own.items()}
    common = {name: fields[name] for name in COMMON}
    file = folder / "chain.yaml"
    file.write_text(yaml.safe_dump({"name": "all", "common": common, "stages": entries}))
    return str(file)


COMMON = ("model.path", "storage.root", "training.sequence_length", "evaluation.sequence_length")


def test_a_chain_file_can_have_every_job(fields: dict[str, Any], tmp_path: Path) -> None:
    nodes = expand_chain(read_chain(chain_of(NAMES, fields, tmp_path)))
    assert {node.name: node.job for node in nodes} == {f"my-{name}": JOBS[name] for name in NAMES}
    goals = build_chain(nodes).goals
    assert {goal.job.name for goal in goals} == {*NAMES}
    seeds = [goal.values["seed"] for goal in goals if goal.job.name == "finetune"]
    # The chain runs one stage per seed instead of the stage that summarizes all seeds.
    assert seeds == [str(seed) for seed in Config().finetune.seeds]


@pytest.mark.parametrize(("wrong", "right"), [("dap", "dapt"), ("finetun", "finetune"), ("sequnce", "sequence")])
def test_an_unknown_job_names_the_nearest(wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    file = Path(chain_of(["dapt"], fields, tmp_path))
    file.write_text(file.read_text().replace("job: dapt", f"job: {wrong}"))
    looks: list[Callable[[], object]] = [
        lambda: job_of(wrong),
        lambda: read_job([f"--job={wrong}"]),
        lambda: read_job(["--job", wrong, "--seed=1"]),
        lambda: read_chain(str(file)),
    ]
    for look in looks:
        with pytest.raises(ConfigError, match=f"there is no job {wrong}") as caught:
            look()
        assert caught.value.fix == f"did you mean {right}?"


def test_an_unknown_job_without_similar_names_lists_all() -> None:
    for wrong in ("", "zzz"):
        with pytest.raises(ConfigError, match=rf"there is no job {wrong or '.none.'}") as caught:
            job_of(wrong)
        assert all(name in caught.value.fix for name in NAMES)


def test_the_job_of_a_plan_is_taken_from_the_command_line() -> None:
    assert read_job(["--seed=1"]) == (JOBS["dapt"], ["--seed=1"])
    assert read_job(["--seed=1", "--job=tapt", "--name=x"]) == (JOBS["tapt"], ["--seed=1", "--name=x"])
    assert read_job(["--job", "advise", "--name=x"]) == (JOBS["advise"], ["--name=x"])
    with pytest.raises(ConfigError, match="there is no job"):
        read_job(["--seed=1", "--job"])


# --- plan


Plan = Callable[..., tuple[Any, str]]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Plan]:
    """Yields a function that runs `jobs/chain.py plan` in this process. It returns stdout's last line and stderr."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*given: str) -> tuple[Any, str]:
        capfd.readouterr()
        code = attempt(lambda: main(["plan", *given]))
        out, err = capfd.readouterr()
        return (None if code else json.loads(out.splitlines()[-1])), err

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", NAMES)
def test_every_job_can_be_planned(name: str, fields: dict[str, Any], tmp_path: Path, plan: Plan) -> None:
    line, err = plan(f"--job={name}", *arguments(given(name, fields)))
    assert line is not None, err
    assert f"This is what `dontstop {name}` would run." in err
    final = JOBS[name].final(Context.of(parse_values(given(name, fields), JOBS[name].kind, "here")))
    stages: dict[str, Stage[Any]] = {}
    waiting: list[Stage[Any]] = [final]
    for stage in waiting:
        if stage.key not in stages:
            stages[stage.key] = stage
            waiting += stage.inputs.values()
    assert line == {"stage": "plan", "path": str(tmp_path / "runs"), "metrics": {"done": 0, "stages": len(stages)}}
    assert {stage.kind for stage in stages.values()} <= {*err.replace("│", " ").split()}


def test_an_unknown_job_cannot_be_planned(fields: dict[str, Any], plan: Plan) -> None:
    line, err = plan("--job=advice", *arguments(fields))
    assert line is None
    assert "ConfigError: there is no job advice" in err
    assert "fix: did you mean advise?" in err


# --- a user-defined job


def toy_final(context: Context) -> Listing:
    return listed_files(context, context.config.corpus, context.config.name).listing


@dataclass(frozen=True)
class Counted:
    """The result of the toy job."""

    parts: int
    given: list[str]

    def blocks(self, record: Record) -> list[Block]:
        return [TextBlock(f"{self.parts} parts of {record.name}")]


def counted(context: Context, finished: Finished[Any], given: Any) -> Counted:
    return Counted(finished.result.parts, list(given))


TOY = Job(Kind("count", "Counts the files of a corpus.", defaults={"name": "counted", "seed": 7}), toy_final, counted)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Job:
    """Adds a job to the table of jobs."""
    monkeypatch.setitem(JOBS, "count", TOY)
    return TOY


def test_a_new_job_only_needs_a_line_in_the_table(
    toy: Job,
    fields: dict[str, Any],
    tmp_path: Path,
    plan: Plan,
    capfd: pytest.CaptureFixture[str],
) -> None:
    values = {name: value for name, value in fields.items() if name != "task"}
    values["corpus.paths"] = ["one.jsonl", "two.jsonl"]
    assert plan("--job=count", *arguments(values))[0]["metrics"] == {"done": 0, "stages": 1}
    assert "This is what `dontstop count` would run." in plan("--job=count", *arguments(values))[1]
    file = tmp_path / "chain.yaml"
    file.write_text(yaml.safe_dump({"stages": {"mine": {"job": "count", **values}}}))
    chain = build_chain(expand_chain(read_chain(str(file))))
    (goal,) = chain.goals
    assert (goal.label, goal.config.seed) == ("mine", 7)
    assert ensure(goal.stage, chain.store).result.parts == 2
    capfd.readouterr()
    carry_out(toy, arguments(values))
    line = json.loads(capfd.readouterr().out)
    assert (line["stage"], line["metrics"]["parts"]) == ("count", 2)
    assert line["metrics"]["given"] == arguments(values)
    with pytest.raises(ConfigError, match="there is no job coun") as caught:
        job_of("coun")
    assert caught.value.fix == "did you mean count?"


def test_other_stages_cannot_start_from_a_job_without_a_model(toy: Job, fields: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    mine = {"job": "count", "corpus.paths": "one.jsonl", "model.path": fields["model.path"]}
    after = {"job": "dapt", "corpus.paths": "one.jsonl", "from": "mine"}
    file.write_text(yaml.safe_dump({"stages": {"mine": mine, "after": after}}))
    with pytest.raises(ConfigError, match="unknown key mine in after"):
        expand_chain(read_chain(str(file)))
    assert replace(toy, training=lambda stage: None).training is not None

"""Tests the Python library: its function for each job has the checks, keys and errors of the job's command."""

import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dontstop
from adapt.api import configuration
from adapt.config import Config, CorpusConfig, SourceConfig, TaskConfig, TrainingConfig, VocabularyConfig
from adapt.config.job_config import DAPT
from adapt.job import JOBS
from adapt.parse.python_values import arguments_of
from adapt.runner.notifications import wait_until_sent
from adapt.show.blocks import Section, TextBlock
from adapt.show.report import report_page
from adapt.show.report.study import Study
from adapt.support.errors import ConfigError, TrainingError
from adapt.terminal.console import end_now, log
from adapt.terminal.library import LOGGER, as_library
from adapt.terminal.live import display as progress
from tests.samples import sentences, write

TEXT = {"paths": "text.jsonl"}
MADE = {"training": {"learning_rate": 1e-4, "max_steps": 3}, "name": "papers", "corpus": TEXT}


def test_every_job_has_a_documented_function() -> None:
    for name in JOBS:
        function = getattr(dontstop, name)
        assert name in dontstop.__all__
        assert inspect.getdoc(function)
    assert all(hasattr(dontstop, name) for name in dontstop.__all__)


def test_the_page_names_the_public_functions() -> None:
    page = (Path(__file__).parents[1] / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
    assert {*re.findall(r"dontstop\.(\w+)", page)} <= {*dontstop.__all__}
    table = re.split(r"\| *function *\|", page)[1].split("\n\n")[0]
    listed = {*re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)}
    named = {name for cell in listed for name in re.findall(r"`(\w+)", cell)}
    assert named == {*JOBS, "plan", "tune", "chain"}


def test_importing_the_package_loads_no_slow_modules() -> None:
    program = "import dontstop, sys; print(sorted({'torch', 'ray', 'transformers', 'deepspeed'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_file_a_mapping_a_config_and_keywords_give_the_same_configuration(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("name: papers\ncorpus: {paths: text.jsonl}\ntraining: {learning_rate: 1.0e-4, max_steps: 3}\n")
    training = TrainingConfig(learning_rate=1e-4, max_steps=3)
    ways = [
        configuration(DAPT, file, {}),
        configuration(DAPT, str(file), {}),
        configuration(DAPT, [file], {}),
        configuration(DAPT, MADE, {}),
        configuration(DAPT, None, MADE),
        configuration(
            DAPT, None, {"training.learning_rate": 1e-4, "training.max_steps": 3, "name": "papers", "corpus": TEXT}
        ),
        configuration(DAPT, Config(name="papers"), {**MADE, "training": training}),
    ]
    assert all(config == ways[0] for config in ways)
    assert ways[0].training.learning_rate == 1e-4


def test_keywords_replace_single_fields(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("corpus: {paths: text.jsonl}\ntraining: {learning_rate: 1.0e-4, max_steps: 3}\n")
    for source in (file, MADE):
        training = configuration(DAPT, source, {"training": {"max_steps": 9}}).training
        assert (training.learning_rate, training.max_steps) == (1e-4, 9)
    given = configuration(DAPT, file, {})
    assert configuration(DAPT, given, {}) == given
    assert configuration(DAPT, given, {"seed": 7}).training == given.training


@pytest.mark.parametrize("job", JOBS)
def test_a_config_gets_the_defaults_of_its_job(job: str) -> None:
    kind = JOBS[job].kind
    sources = [{"name": "a", "paths": "a"}, {"name": "b", "paths": "b"}]
    given: dict[str, Any] = {"seed": 3, "task": {"train": "a", "dev": "b", "test": "c"}}
    given["corpus"] = {"sources": sources} if kind.sources else TEXT
    expected = configuration(kind, None, given)
    config = Config(
        seed=3,
        task=TaskConfig(train="a", dev="b", test="c"),
        corpus=CorpusConfig(sources=[SourceConfig(**each) for each in sources])
        if kind.sources
        else CorpusConfig(**TEXT),
    )
    assert configuration(kind, config, {}) == expected
    assert configuration(kind, config, {"training.max_steps": 7}) == configuration(
        kind, given, {"training.max_steps": 7}
    )
    assert configuration(kind, expected, {}) == expected
    assert configuration(kind, config, {"name": "dapt"}).name == "dapt"


def test_lists_of_sections_and_texts_keep_their_form() -> None:
    sources = [{"name": "cs", "paths": ["a.jsonl", "b.jsonl"]}, {"name": "bio", "paths": "c*.jsonl"}]
    config = configuration(DAPT, None, {"corpus": {"sources": sources}, "storage": {"root": Path("x")}})
    assert [(source.name, source.paths) for source in config.corpus.sources] == [
        ("cs", ["a.jsonl", "b.jsonl"]),
        ("bio", "c*.jsonl"),
    ]
    assert config.storage.root == "x"


@pytest.mark.parametrize(
    "text",
    ["papers #2", "null", "no", "'papers'", "12", "a: b", "#2", "[a]", "\U0001f600 \u2028 \x85 \x7f", "ä\\u0041", ""],
)
def test_texts_are_not_read_as_yaml(text: str) -> None:
    config = configuration(DAPT, None, {"model": {"path": text}, "corpus": {"paths": ["a", f"{text}.txt"]}})
    assert (config.model.path, config.corpus.paths) == (text, ["a", f"{text}.txt"])
    assert configuration(DAPT, config, {"corpus.paths": Path(f"{text}/a")}).corpus.paths == f"{text}/a"


@pytest.mark.parametrize(
    ("fields", "what", "fix"),
    [
        ({"trainin": {"max_steps": 3}}, "unknown key", "training"),
        ({"training": {"learning_rat": 3}}, "unknown key", "learning_rate"),
        ({"training": {"max_steps": "many"}}, "training.max_steps", ""),
    ],
)
def test_a_wrong_keyword_is_refused_as_on_the_command_line(fields: dict[str, object], what: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        dontstop.dapt(**fields)
    assert fix in f"{caught.value.what} {caught.value.fix}"


@pytest.mark.parametrize("source", [3, {"a.yaml"}, [3], object()])
def test_a_configuration_of_another_type_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"the configuration is .*, of type ") as caught:
        dontstop.plan("dapt", source)
    assert "the path of a YAML file" in caught.value.fix


def test_values_of_common_types_are_taken_and_others_refused() -> None:
    given = {"training.max_steps": np.int64(3), "training.learning_rate": np.float32(0.5), "corpus.paths": {"b", "a"}}
    config = configuration(DAPT, None, {**given, "finetune.seeds": np.arange(2)})
    assert (config.training.max_steps, config.training.learning_rate, config.corpus.paths, config.finetune.seeds) == (
        3, 0.5, ["a", "b"], [0, 1],
    )  # fmt: skip
    for value in (object(), b"a", [1j]):
        with pytest.raises(ConfigError, match=r"corpus\.paths is .*: no field takes a "):
            configuration(DAPT, None, {"corpus.paths": value})


@pytest.mark.parametrize("given", ["1e-4", ["1e-4"], 1e-4, [1e-4], (1e-4,), np.array([1e-4])])
@pytest.mark.parametrize("member", ["1.0e-4", "'1e-4'"])
def test_members_of_a_set_may_be_numbers_or_a_single_member(given: Any, member: str, tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(
        f"sets: {{rate: [{member}, 1.0e-3]}}\n"
        "stages:\n  dapt: {job: dapt, for: rate, training.learning_rate: '{rate}', corpus.paths: text.jsonl}\n"
    )
    chain = dontstop.chain(file, only={"rate": given})._chain
    assert chain.only["rate"] == [next(iter(chain.file.sets["rate"]))]


def test_a_file_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no configuration file nowhere\.yaml"):
        dontstop.dapt("nowhere.yaml")
    assert arguments_of(None, {}) == []


def test_the_process_state_is_restored() -> None:
    before = dict(os.environ), list(warnings.filters), signal.getsignal(signal.SIGINT)
    with as_library(), as_library():
        os.environ["RAY_TRAIN_SOMETHING"] = "1"
        os.environ["OMP_WAIT_POLICY"] = "ACTIVE"
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert (dict(os.environ), list(warnings.filters), signal.getsignal(signal.SIGINT)) == before


def test_messages_go_to_the_logger_and_not_to_stderr(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "dontstop"), as_library():
        log("half done, see https://user:secret@host/x")
    log("outside")
    assert [record.message for record in caplog.records] == ["half done, see https://host/x"]
    assert capsys.readouterr().err == "outside\n"


@pytest.mark.parametrize("is_ignored", [False, True])
def test_an_error_that_ends_a_command_ends_the_run_and_not_the_process(is_ignored: bool) -> None:
    """A run must end at an error, even in a script that ignores SIGINT because a shell started it in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if is_ignored else signal.default_int_handler)

    def waits_until_ray_is_gone() -> None:
        with as_library():
            threading.Thread(target=end_now, args=(TrainingError("Ray was killed", "run it again"),)).start()
            while True:
                time.sleep(0.01)

    try:
        with pytest.raises(TrainingError, match="Ray was killed"):
            waits_until_ray_is_gone()
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_ends_runs_in_threads_and_not_code_outside_runs() -> None:
    ended: list[Exception] = []
    has_begun = threading.Event()

    def run() -> None:
        try:
            with as_library():
                has_begun.set()
                while True:
                    time.sleep(0.01)
        except TrainingError as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert has_begun.wait(10)
    end_now(TrainingError("Ray was killed", "run it again"))
    thread.join(10)
    assert [str(error.what) for error in ended] == ["Ray was killed"]


def test_an_interrupt_leaves_the_signal_handlers_unchanged() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started pytest without it
    try:
        with pytest.raises(KeyboardInterrupt), as_library():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


class Shell:
    """Stands in for the shell of a notebook's kernel."""

    kernel = object()


def test_a_notebook_shows_messages_and_one_line_of_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, text: object) -> None:
            shown[-1] = repr(text)

    def display(text: object, display_id: bool) -> Handle:
        shown.append(repr(text))
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=Shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with as_library():
        log("train: begins")
        with progress("waiting", []) as line:
            line.update({"step": "step 1/2", "loss": "loss 3.0"}, 1, 2)
            line.update({"step": "step 2/2", "loss": "loss 2.0"}, 2, 2)
    assert capsys.readouterr() == ("train: begins\n", "")
    assert shown == ["step 2/2 [========================]  loss 2.0"]
    assert not LOGGER.handlers


@pytest.fixture
def fields(tiny_bert: Path, tmp_path: Path) -> dict[str, object]:
    corpus = write(tmp_path / "corpus.jsonl", [{"text": text} for text in sentences(200)])
    return {
        "model": {"path": str(tiny_bert)},
        "corpus": {"paths": corpus, "heldout_fraction": 0.2},
        "training": {"max_steps": 2, "global_batch_size": 4, "sequence_length": 32},
        "evaluation": {"sequence_length": 32},
        "storage": {"root": str(tmp_path / "runs")},
    }


def test_a_plan_shows_stages_and_runs_nothing(fields: dict[str, object], tmp_path: Path) -> None:
    plan = dontstop.plan("dapt", **fields)
    assert [line.stage.kind for line in plan.to_run] == [
        "manifest",
        "prepare",
        "train",
        "evaluate",
        "evaluate",
        "export",
    ]
    assert "0 of 6 stages are finished" in str(plan)
    # `_repr_html_` puts the plan's page into a frame and therefore escapes its tags.
    assert "&lt;td" in plan._repr_html_()
    assert not list((tmp_path / "runs").glob("train"))
    with pytest.raises(ConfigError, match="there is no job dapd"):
        dontstop.plan("dapd", **fields)


def test_a_chain_is_planned_looked_at_and_reported(fields: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text("let: {steps: 3}\nstages:\n  dapt: {job: dapt, training.max_steps: '{steps}'}\n")
    study = dontstop.chain(file, fields=fields, steps=4)
    plan = study.plan()
    assert plan.states == {"finished": 0, "running": 0, "waiting": 1}
    assert plan.to_run["train"] == 1
    assert "stages will run: 1 manifest" in str(plan)
    assert "0 of 1 results are finished" in str(study.status())
    report = study.report()
    assert report.path.is_file()
    assert str(report.path) in str(report)
    with pytest.raises(ConfigError, match="stepz"):
        dontstop.chain(file, fields=fields, stepz=4)


@pytest.mark.parametrize(
    ("given", "read"),
    [(np.int64(4), 4), (None, None), (True, True), (Path("/a b #1"), "/a b #1"), (["a", "b"], ["a", "b"]), ("4", "4")],
)
def test_values_of_a_chain_keep_their_types(given: Any, read: Any, tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text("let: {some: 3}\nstages:\n  dapt: {job: dapt}\n")
    chain = dontstop.chain(file, fields={"training": {"max_steps": given}}, some=given)._chain
    assert chain.file.common == {"training.max_steps": read}
    assert chain.file.let == {"some": read}
    for wrong in ({"some": object()}, {"fields": {"training.max_steps": object()}}):
        with pytest.raises(ConfigError, match=r"(some|training\.max_steps) is <object object"):
            dontstop.chain(file, **wrong)


def test_a_report_is_computed_once(fields: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def contents(study: Study) -> tuple[str, list[Section]]:
        computed.append(study.name)
        return "", [Section("Verdict", [TextBlock("equal")])]

    monkeypatch.setattr(report_page, "contents_of", contents)
    file = tmp_path / "chain.yaml"
    file.write_text("stages:\n  dapt: {job: dapt}\n")
    assert "equal" in str(dontstop.chain(file, fields=fields).report())
    assert computed == ["chain"]


def test_vocabulary_takes_a_section_as_a_dataclass(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"vocabulary\.size"):
        dontstop.vocabulary("extend", vocabulary=VocabularyConfig(size=-1), **fields)


def test_a_search_needs_a_space_that_exists(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="there is no file tapd") as caught:
        dontstop.tune("tapd", job="dapt", **fields)
    assert "tapt" in caught.value.fix


@pytest.mark.usefixtures("ray_cluster")
def test_a_job_returns_its_result_and_model_and_shows_them(
    fields: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[dict[str, object]] = []
    monkeypatch.setattr("adapt.runner.notifications.send_message", lambda address, content: messages.append(content))
    monkeypatch.setenv("TEST_WEBHOOK", "https://example.org/hook")
    fields |= {"notify": {"webhook": "TEST_WEBHOOK"}}
    run = dontstop.dapt(**fields)
    wait_until_sent()
    assert [(message["event"], message["path"]) for message in messages] == [("finish", str(run.path))]
    assert "Verdict: no difference beyond chance" in str(messages[0]["text"])
    change = run.result.losses["domain"].change
    assert change.low is not None
    assert change.low <= change.value <= change.high  # type: ignore[operator]
    assert (run.job, run.config.training.max_steps, run.record.stage) == ("dapt", 2, "export")
    assert f"{change.value:+.3f}" in str(run)
    assert f"{change.value:+.3f}" in run._repr_html_()
    model, tokenizer = run.load()
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    began = run.record.started_at
    assert dontstop.dapt(**fields).record.started_at == began  # The second call does not run the stage again.
    wait_until_sent()
    assert len(messages) == 1  # The second call sends no message, because it ran nothing.
    assert not dontstop.plan("dapt", **fields).to_run
    with pytest.raises(ConfigError, match=r"the job made no model for the share 0\.5"):
        run.load(share=0.5)


INTERRUPTED = """
import asyncio, json, os, signal, sys, threading, time
from pathlib import Path
import pytest
import dontstop
from tests.forks.process import with_forked_workers

with_forked_workers(pytest.MonkeyPatch())  # without this, each worker of the four runs imports everything itself
known = {*os.environ}

fields, root, said = json.loads(sys.argv[1]), Path(sys.argv[2]), {}

def steps(number, **more):
    return {**fields, **more, "training": {**fields["training"], "max_steps": number, "log_interval_steps": 1}}

def interrupt_twice():
    while not list(root.glob("train/*/metrics.jsonl")):
        time.sleep(0.1)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)

before = signal.getsignal(signal.SIGINT)
user = threading.Thread(target=interrupt_twice, daemon=True)
user.start()
try:
    try:
        dontstop.dapt(steps(100_000))
    finally:
        user.join()  # the second interrupt may come after the run's end; it must not hit the next run
        time.sleep(0.1)
except KeyboardInterrupt:
    said["interrupted"] = signal.getsignal(signal.SIGINT) is before

async def cell():
    return dontstop.dapt(steps(2)).result.steps

said["again"] = asyncio.run(cell())  # a notebook's cell runs inside of an event loop

def run(seed):
    said[f"seed {seed}"] = dontstop.dapt(steps(2), seed=seed).result.steps

threads = [threading.Thread(target=run, args=(seed,)) for seed in (5, 6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
said["environment"] = sorted(name for name in {*os.environ} - known if name.startswith(("RAY_", "DONTSTOP_")))
print(json.dumps(said))
"""


@pytest.mark.slow
def test_other_runs_work_after_an_interrupted_run(fields: dict[str, object], tmp_path: Path) -> None:
    """Interrupts a run twice, then runs one job inside an event loop, and two at once in threads."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "DONTSTOP_"))}
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, json.dumps(fields), str(tmp_path / "runs")],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = {"interrupted": True, "again": 2, "seed 5": 2, "seed 6": 2, "environment": []}
    assert json.loads(ran.stdout.splitlines()[-1]) == said
    assert ran.stderr == ""

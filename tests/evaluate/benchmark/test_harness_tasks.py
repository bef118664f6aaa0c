"""Tests task files of lm-evaluation-harness: how they are read, how they change keys, and which are refused early."""

from pathlib import Path

import pytest

from adapt.config import HarnessConfig
from adapt.evaluate.benchmark import harness_tasks as module
from adapt.evaluate.benchmark.harness_tasks import HarnessTasks, harness_tasks, missing_packages
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError
from tests.evaluate.benchmark.tiny_tasks import CHOICE, task_folder

HARMLESS = CHOICE.format(name="mine", data="choice.jsonl")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder with task files. A folder next to it replaces the installed harness and has two tasks."""
    monkeypatch.setattr(module, "missing_packages", lambda packages: "")
    built_in = tmp_path / "built_in.yaml"
    built_in.write_text("task: arc_easy\ndataset_path: allenai/ai2_arc\ndoc_to_text: !function utils.text\n")
    unsafe = tmp_path / "unsafe.yaml"
    unsafe.write_text("task: humaneval\nunsafe_code: true\n")
    known = {"arc_easy": built_in, "humaneval": unsafe, "ai2_arc": None}
    monkeypatch.setattr(module, "built_in_tasks", lambda: known)
    monkeypatch.setattr(module, "is_cached", lambda path: False)
    return task_folder(tmp_path / "tasks")


def found(folder: Path, *tasks: str, functions: list[str] | None = None) -> HarnessTasks:
    config = HarnessConfig(tasks=[*tasks], include_path=str(folder), functions=functions or [])
    return harness_tasks(config, Digests())


def test_own_tasks_are_data_with_absolute_paths(folder: Path) -> None:
    tasks = found(folder, "choice", "pages")
    assert tasks.parts == {"choice": ("choice",), "pages": ("pages",)}
    kwargs = tasks.own["choice"].content["dataset_kwargs"]
    assert kwargs == {"data_files": {"test": [str(folder / "choice.jsonl")]}}


def test_includes_groups_and_tags_are_resolved(folder: Path) -> None:
    (folder / "base").write_text("dataset_path: json\ntag: [mine]\nnum_fewshot: 3\n")
    (folder / "one.yaml").write_text(
        "include: base\ntask: one\ndataset_kwargs: {data_files: pages.jsonl}\nnum_fewshot: 1\n"
    )
    (folder / "all.yaml").write_text("group: all\ntask: [mine, choice]\n")
    tasks = found(folder, "all")
    assert tasks.parts == {"all": ("one", "choice")}
    assert tasks.own["one"].content["num_fewshot"] == 1
    with pytest.raises(ConfigError, match="contains the task one twice"):
        found(folder, "all", "one")
    (folder / "all.yaml").write_text("group: all\ntask: [arc_easy]\n")
    with pytest.raises(ConfigError, match=r"group all .* contains 'arc_easy', which is not one of your"):
        found(folder, "all")
    (folder / "all.yaml").write_text("group: all\ntask: [part]\n")
    (folder / "part.yaml").write_text("group: part\ntask: [all]\n")
    with pytest.raises(ConfigError, match=r"group part .* contains 'all', which contains 'part' itself"):
        found(folder, "all")


def test_the_key_depends_on_content_and_data_but_not_on_paths(folder: Path, tmp_path: Path) -> None:
    first = found(folder, "choice").what()
    copy = tmp_path / "copy"
    folder.rename(copy)
    assert found(copy, "choice").what() == first
    (copy / "choice.jsonl").write_text((copy / "choice.jsonl").read_text() + "\n")
    changed = found(copy, "choice")
    assert changed.what() != first
    (copy / "choice.yaml").write_text(CHOICE.format(name="choice", data="choice.jsonl").replace(" and", " or"))
    assert found(copy, "choice").what()["own"] != changed.what()["own"]
    (copy / "choice.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="have changed while the task was measured"):
        changed.check_unchanged()


def test_functions_run_only_for_tasks_that_the_user_names(folder: Path) -> None:
    (folder / "mine.yaml").write_text(HARMLESS.replace('"{{choices}}"', "!function code.choices"))
    with pytest.raises(ConfigError, match=r"runs Python code: !function code\.choices\n.*harness\.functions: \[mine\]"):
        found(folder, "mine")
    with pytest.raises(DataError, match=r"code\.py, which does not exist"):
        found(folder, "mine", functions=["mine"])
    (folder / "code.py").write_text("raise SystemExit\n")  # running this code would end the test
    digest = found(folder, "mine", functions=["mine"]).digests["mine"]
    (folder / "code.py").write_text("choices = None\n")
    assert found(folder, "mine", functions=["mine"]).digests["mine"] != digest
    with pytest.raises(ConfigError, match=r"harness\.functions: main .*\n.*did you mean mine\?"):
        found(folder, "choice", functions=["main"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("task: mine", "task: mine\nunsafe_code: true", "runs the code that a model writes"),
        ("task: mine", "task: mine\nclass: os.system", "names a Python class"),
        ("task: mine", "task: mine\nuse_prompt: 'x.yaml:y'", "prompt comes from another"),
        ("metric: acc,", "metric: ./evil.py, hf_evaluate: true,", "runs code from the Hugging Face Hub"),
        ("dataset_path: json", "dataset_path: pandas", "neither a supported file format nor a dataset"),
        ("dataset_path: json", "dataset_path: ../data", "neither a supported file format nor a dataset"),
        ("dataset_path: json", "dataset_path: owner/name", "HF_HUB_OFFLINE is set"),
        ("test: choice.jsonl", "test: none.jsonl", "there is no file none.jsonl"),
        ("test: choice.jsonl", "test: 'https://host/x'", "is not a local file"),
        ("dataset_kwargs: {data_files: {test: choice.jsonl}}", "", "names no data"),
    ],
)
def test_task_files_that_cannot_or_must_not_run_are_refused(folder: Path, old: str, new: str, said: str) -> None:
    assert old in HARMLESS
    (folder / "mine.yaml").write_text(HARMLESS.replace(old, new))
    with pytest.raises((ConfigError, DataError), match=said) as caught:
        found(folder, "mine")
    assert caught.value.fix
    assert "mine" in caught.value.what


def test_broken_files_are_named(folder: Path) -> None:
    for content, said in (
        ("task: [", "cannot be read"),
        ("- a", "is not a YAML mapping"),
        ("!!python/name:os.system", "cannot"),
    ):
        (folder / "bad.yaml").write_text(content)
        with pytest.raises(DataError, match=rf"bad\.yaml.*{said}"):
            found(folder, "choice")
    (folder / "bad.yaml").write_text("include: bad.yaml\ntask: bad\n")
    with pytest.raises(DataError, match="includes itself"):
        found(folder, "choice")
    (folder / "bad.yaml").write_text("task: pages\n")
    with pytest.raises(ConfigError, match="both define the task pages"):
        found(folder, "choice")


@pytest.mark.parametrize(
    ("tasks", "said", "fix"),
    [
        (["arc_eazy"], "there is no task arc_eazy", "did you mean arc_easy?"),
        (["choise"], "there is no task choise", "did you mean choice?"),
        (["choice", "choice"], "names choice twice", "name it once"),
        (["humaneval"], "runs the code that a model writes", "leave out this task"),
        (["arc_easy"], "needs the dataset allenai/ai2_arc .* HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"),
    ],
)
def test_names_that_cannot_be_measured_are_refused(folder: Path, tasks: list[str], said: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        found(folder, *tasks)
    assert fix in caught.value.fix


def test_a_missing_package_is_named_with_its_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_packages(("json", "no_such_package", "neither")) == "no_such_package and neither"
    monkeypatch.setattr(module, "missing_packages", lambda packages: "lm_eval")
    with pytest.raises(ConfigError, match=r"lm_eval is not installed\n.*pip install 'dontstop\[harness\]'"):
        found(folder, "choice")

"""Tests the command `dontstop`: its lists of commands, its messages for unknown names, and its start-up time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from adapt.cli.main import COMMANDS, RUN, recipe_rows, run_command, script, usage
from adapt.job import JOBS
from adapt.support.errors import ConfigError
from adapt.support.paths import recipe_file, recipes, spaces, unless_here

LIGHT = "import sys; from adapt.cli.main import run_command; run_command({!r}); print(sorted({!r} & set(sys.modules)))"
HEAVY = {"torch", "ray", "transformers", "deepspeed", "scipy", "matplotlib"}


def test_every_job_and_command_is_listed_and_can_run() -> None:
    assert COMMANDS.keys() == RUN.keys()
    assert all(f"\n  {name} " in usage() for name in [*JOBS, *COMMANDS])


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"]])
def test_without_a_command_it_lists_them(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run_command(arguments)
    assert capsys.readouterr().out.strip() == usage()


def test_a_command_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no command evalute") as caught:
        run_command(["evalute"])
    assert caught.value.fix == "did you mean evaluate?"


@pytest.mark.parametrize(
    "command", [["dapt", "--help"], ["chain", "--help"], ["tune", "--help"], ["recipes"], ["init", "--help"]]
)
def test_help_loads_no_slow_modules(command: list[str]) -> None:
    program = f"try:\n    {LIGHT.format(command, HEAVY)}\nexcept SystemExit:\n    pass\n".replace("; ", "\n    ")
    program += f"print(sorted({HEAVY!r} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_recipes_say_what_they_do_and_how_to_run_them(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["recipes"])
    shown = capsys.readouterr().out
    found = recipe_rows()
    for name, about, _ in found:
        assert about, name
        assert name in shown
    assert {name: command for name, _, command in found}.items() >= {
        "demo": "dontstop demo",
        "study": "dontstop chain run study",
        "roberta_dapt": "dontstop dapt --config roberta_dapt",
        "sequence": "dontstop sequence --config sequence",
    }.items()
    assert {"tapt", "das"} <= spaces().keys()


def test_a_recipe_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["recipes", "demo"])
    assert capsys.readouterr().out == Path(recipe_file("demo")).read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="there is no recipe stduy") as caught:
        run_command(["recipes", "stduy"])
    assert caught.value.fix == "did you mean study?"


@pytest.mark.parametrize("name", sorted({*recipes()} & {*spaces()}))
def test_a_recipe_is_printed_where_a_search_space_has_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["recipes", name])
    printed = capsys.readouterr()
    assert printed.out == recipes()[name].read_text("utf-8")
    assert f"dontstop recipes spaces/{name}" in printed.err
    run_command(["recipes", f"spaces/{name}"])
    assert capsys.readouterr().out == spaces()[name].read_text("utf-8")


def test_a_search_space_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["recipes", "tapt"])
    assert capsys.readouterr() == (spaces()["tapt"].read_text("utf-8"), "")


def test_a_users_own_file_comes_before_a_recipe_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipe_file("study").endswith("study.yaml")
    (tmp_path / "study").write_text("")
    assert recipe_file("study") == "study"
    assert "study" not in unless_here(recipes())
    assert recipe_file("nowhere.yaml") == "nowhere.yaml"


@pytest.mark.parametrize(
    "command",
    [
        ["dapt", "--config", "demo", "--print_config"],
        ["doctor", "--config=demo", "--print_config"],
        ["tune", "--config", "demo", "--job=dapt", "--print_config"],
        ["chain", "plan", "--config", "demo", "--print_config"],
    ],
)
def test_config_takes_the_name_of_a_recipe(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(command)
    assert "packages:" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [["run"], ["plan"], ["status", "--follow"], ["report", "--serve"]])
def test_chain_takes_the_name_of_a_recipe(verb: list[str]) -> None:
    with pytest.raises(ConfigError, match="unknown key --nothing"):
        run_command(["chain", *verb, "study", "--nothing=1"])


@pytest.mark.parametrize("command", [["recipes", "demo"], ["completion", "bash"], ["push", "--help"]])
def test_every_command_takes_debug(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run_command(command)
    shown = capsys.readouterr().out
    run_command(["--debug" if word == "--help" else word for word in command] + ["--debug"])
    assert capsys.readouterr().out == shown
    with pytest.raises(ConfigError, match="there is no folder nowhere"):
        run_command(["push", "nowhere", "me/model", "--debug"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_says_how_to_use_it_in_this_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["completion", shell])
    said = capsys.readouterr().err
    assert f"dontstop completion {shell}" in said
    assert ("bash" in said) == (shell == "bash")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_fields(shell: str) -> None:
    text = script(shell)
    assert all(name in text for name in ("dapt", "chain", "init", "doctor", "training.learning_rate", "dsir.ngram"))


@pytest.mark.parametrize(
    ("words", "completed"), [("ch", ["chain"]), ("do", ["doctor"]), ("init --t", ["--task"]), ("chain pl", ["plan"])]
)
def test_the_bash_completion_completes(words: str, completed: list[str]) -> None:
    typed = f"COMP_WORDS=(dontstop {words}); COMP_CWORD={len(words.split())}"
    program = f"{script('bash')}\n{typed}; _dontstop; echo ${{COMPREPLY[@]}}"
    ran = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == completed


def test_an_unknown_shell_is_refused() -> None:
    with pytest.raises(ConfigError, match="no completion for tcsh"):
        script("tcsh")


def test_the_scripts_in_jobs_are_the_commands(tmp_path: Path) -> None:
    """Checks all scripts, including a script that has the name of a module of the standard library."""
    root = Path(__file__).parents[2]
    assert {file.stem for file in (root / "jobs").glob("*.py")} == {*JOBS, "chain", "tune"}
    for name in ("select", "dapt"):
        config = tmp_path / f"{name}.json"
        config.write_text(json.dumps({"nothing": 1}))
        command = [sys.executable, f"jobs/{name}.py", "--config", str(config)]
        ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert ran.returncode == 2
        assert "unknown key nothing" in ran.stderr

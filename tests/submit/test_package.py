"""Tests the files and arguments that are sent to a cluster: their size, their paths, and the lack of secrets."""

from pathlib import Path

import pytest

from adapt.submit.package import check_no_secrets, check_size, inside, runtime_environment, working_directory
from adapt.support.errors import ConfigError


def environment(root: Path, **given: object) -> dict[str, object]:
    return {"working_dir": str(root), "excludes": ["/runs/"], **given}


def test_a_large_working_directory_is_refused_and_its_largest_folders_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights.bin").write_bytes(bytes(3000))
    (tmp_path / "small.py").write_bytes(bytes(100))
    with pytest.raises(ConfigError, match=r"models/weights.bin") as caught:
        check_size(environment(tmp_path), most=2000)
    assert str(tmp_path / ".rayignore") in caught.value.fix
    assert check_size(environment(tmp_path), most=4000) == 3100


def test_excluded_files_do_not_count(tmp_path: Path) -> None:
    for folder in ("runs", "data", "git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "large").write_bytes(bytes(5000))
    (tmp_path / ".rayignore").write_text("data/\n")
    (tmp_path / ".gitignore").write_text("git/\n")
    assert check_size(environment(tmp_path), most=1000) < 100


def test_this_project_is_within_the_limit() -> None:
    root = Path(__file__).resolve().parents[2]
    made = runtime_environment(root)
    assert check_size(made) < 20e6
    assert (
        float(made["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) > 3
    )  # with less time, a stopped training is killed before it can end


def test_paths_are_rewritten_relative_to_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("")
    given = [str(tmp_path / "my.yaml"), f"--config={tmp_path / 'my.yaml'}", "--data", "/shared/x.yaml", "--seed=1"]
    assert inside(given, tmp_path) == ["my.yaml", "--config=my.yaml", "--data", "/shared/x.yaml", "--seed=1"]


def test_a_file_outside_of_the_working_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "my.yaml").write_text("")
    with pytest.raises(ConfigError, match="is outside"):
        inside([str(tmp_path / "my.yaml")], tmp_path / "project")


def test_a_folder_that_is_not_the_projects_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="not the project's folder"):
        working_directory()


@pytest.mark.parametrize(
    "secret",
    [
        "--tracking.mlflow_uri=https://me:pass@host/x",
        "s3://key:word@bucket",
        "https://h/f?signature=abc",
        "https://h/f#access_token=abc",
        "--mine.api_key=abc",
    ],
)
def test_secrets_on_the_command_line_are_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ConfigError, match="password or a signature") as caught:
        check_no_secrets(["chain.yaml", secret])
    assert not any(word in str(caught.value) for word in ("pass@", "word@", "abc"))
    check_no_secrets(["chain.yaml", "--corpus.paths", "s3://bucket/x.jsonl"])
    check_no_secrets(["chain.yaml", "--corpus.paths=abfss://box@account.dfs.core.windows.net/x.jsonl"])


@pytest.mark.parametrize("variable", ["HF_TOKEN: abc", "MINE: https://me:pass@host", "WANDB_API_KEY: abc"])
def test_secrets_in_the_environment_of_jobs_are_refused(variable: str, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "runtime_env.yaml").write_text(f"env_vars:\n  {variable}\n")
    with pytest.raises(ConfigError, match=f"sets {variable.partition(':')[0]}, which holds a secret") as caught:
        runtime_environment(tmp_path)
    assert not any(word in str(caught.value) for word in ("abc", "pass@"))

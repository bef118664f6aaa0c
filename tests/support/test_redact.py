"""Tests that secrets are removed from stored and shown texts, and that other text is unchanged."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from adapt.config import TaskConfig, TrackingConfig
from adapt.corpus.files.filesystem import matches
from adapt.corpus.files.manifest import Manifest, Part
from adapt.runner.record import Record, load_record
from adapt.support.errors import AdaptError, ConfigError, DataError
from adapt.support.redact import redact, redacted
from adapt.task.labelled_examples import check_count, no_example
from adapt.terminal.console import attempt, finish, log
from adapt.train.metric_trackers import check_trackers

CASES = {
    "s3://bucket/folder/a.jsonl": "s3://bucket/folder/a.jsonl",
    "ftp://user:pass@host/a.jsonl": "ftp://host/a.jsonl",
    "ftp://user:p@ss@host/a.jsonl": "ftp://host/a.jsonl",
    "ftp://user:pa/ss@host/a.jsonl": "ftp://host/a.jsonl",
    "ftp://user:p@s/s?x#y@host/a.jsonl": "ftp://host/a.jsonl",
    "ftp://me@mail.org:pa/ss@host/a.jsonl": "ftp://host/a.jsonl",
    "https://to@ken@host:80/a@b.jsonl": "https://host:80/a@b.jsonl",
    "https://host:8080/a@b.jsonl": "https://host:8080/a@b.jsonl",
    "no answer at http://host:80, ask me@mail.org": "no answer at http://host:80, ask me@mail.org",
    "https://u:p@h/a,https://v:w@g/b": "https://h/a,https://g/b",
    "['https://u:p@h/a', 'https://v:w@g/b']": "['https://h/a', 'https://g/b']",
    "zip://a.csv::https://u:p@h/a.zip": "zip://a.csv::https://h/a.zip",
    "https://token@host:80/a.jsonl?sig=abc&x=1": "https://host:80/a.jsonl",
    "https://host/a.jsonl?token": "https://host/a.jsonl",
    "https://host/a.jsonl?sig=a%2Fb/c": "https://host/a.jsonl",
    "404, message='Not Found', url='https://u:p@h/a?key=secret'": "404, message='Not Found', url='https://h/a'",
    "cannot read https://host/a.txt?signature=s: 403.": "cannot read https://host/a.txt: 403.",
    "(https://host/a.txt?signature=s).": "(https://host/a.txt).",
    "s3://bucket/part-?.jsonl": "s3://bucket/part-?.jsonl",
    "/data/a@b/what?=1.jsonl": "/data/a@b/what?=1.jsonl",
    "hf://datasets/owner/name@main/a.parquet": "hf://datasets/owner/name@main/a.parquet",
    "use s3://, gs://, hf://, …": "use s3://, gs://, hf://, …",
    # in Azure's URLs, the text before the @ is a container and not a user name
    "abfss://box@account.dfs.core.windows.net/a.jsonl": "abfss://box@account.dfs.core.windows.net/a.jsonl",
    "abfs://box@account.dfs.core.windows.net/": "abfs://box@account.dfs.core.windows.net/",
    "wasbs://$web@account.blob.core.windows.net/a@b": "wasbs://$web@account.blob.core.windows.net/a@b",
    "abfss://box:key@account.dfs.core.windows.net/a": "abfss://account.dfs.core.windows.net/a",
    "abfss://box@account.dfs.core.windows.net/a?sv=1&sig=abc": "abfss://box@account.dfs.core.windows.net/a",
    # URLs with fragments, and URLs with IPv6 addresses
    "https://host/back#access_token=abc&expires=9": "https://host/back",
    "https://host/back#id=1.": "https://host/back.",
    "https://host/page#section": "https://host/page#section",
    "s3://bucket/a#1.jsonl": "s3://bucket/a#1.jsonl",
    "https://host/a?sig=abc#token=def": "https://host/a",
    "http://[::1]:8265/a@b": "http://[::1]:8265/a@b",
    "http://me:pass@[::1]:8265/a": "http://[::1]:8265/a",
    # secrets that are recognized by their name, in URLs and other text
    "Authorization: Bearer abc.def": "Authorization: ***",
    "{'authorization': 'Basic dXNlcjpwYXNz'}": "{'authorization': '***'}",
    "sent Bearer abcdefghijklmnop to host": "sent Bearer *** to host",
    "a bearer of news": "a bearer of news",
    "AWS_SECRET_ACCESS_KEY=abc/d+e AWS_REGION=us-west-2": "AWS_SECRET_ACCESS_KEY=*** AWS_REGION=us-west-2",
    "aws_secret_access_key: abc/d+e": "aws_secret_access_key: ***",
    "X-Amz-Signature=0a1b&X-Amz-Date=2026": "X-Amz-Signature=***&X-Amz-Date=2026",
    "WANDB_API_KEY: '0123456789abcdef'": "WANDB_API_KEY: '***'",
    '{"password": "a", "user": "me"}': '{"password": "***", "user": "me"}',
    "db_password=p@ss:w/rd, host=x": "db_password=***, host=x",
    "AccountName=me;AccountKey=abc==;EndpointSuffix=x": "AccountName=me;AccountKey=***;EndpointSuffix=x",
    "HF_TOKEN=abc RAY_AUTH_TOKEN=def": "HF_TOKEN=*** RAY_AUTH_TOKEN=***",
    "--access_token=abc": "--access_token=***",
    "RAY_AUTH_TOKEN_PATH=/home/me/token": "RAY_AUTH_TOKEN_PATH=/home/me/token",
    "mask_token=[MASK] pad_token: <pad>": "mask_token=[MASK] pad_token: <pad>",
    "tokens: 12, token: the": "tokens: 12, token: the",
    "key: 0a1b2c3d, next key=5": "key: 0a1b2c3d, next key=5",
    # secrets that are recognized by their format
    f"no access with hf_{'aB3' * 11}": "no access with ***",
    "the key AKIAIOSFODNN7EXAMPLE is not known": "the key *** is not known",
    f"ghp_{'a1' * 18}.": "***.",
    f"commit {'0a1b2c3d' * 5}": f"commit {'0a1b2c3d' * 5}",
    "hf_model of sk-learn": "hf_model of sk-learn",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def": "***",
}
PASSWORD = "s3cr/t@p:w"
URL = f"ftp://someone:{PASSWORD}@host/train.jsonl"


@pytest.mark.parametrize("text", CASES)
def test_secrets_are_removed_and_the_rest_stays(text: str) -> None:
    assert redact(text) == CASES[text]
    assert redact(CASES[text]) == CASES[text]


@given(st.text("u1.-@", min_size=1), st.text("ab1@/:?#'=&,.%+", min_size=1))
@example("u", "/")
def test_passwords_with_any_characters_are_removed(user: str, password: str) -> None:
    # a password that looks like a port cannot be recognized
    assume("://" not in f"{password}@" and not re.match(r"\d{1,5}[/?#'),;:.]", password))
    assert redact(f"cannot read ftp://{user}:{password}@host/a.csv: gone") == "cannot read ftp://host/a.csv: gone"


def test_values_under_the_name_of_a_secret_are_removed() -> None:
    value = {
        "env_vars": {"HF_TOKEN": "abc", "HOME": "/home/me"},
        "mask_token": "<mask>",
        "api_key": None,
        "n": 3,
        "mine.api_key": "a",
    }
    shown = {
        "env_vars": {"HF_TOKEN": "***", "HOME": "/home/me"},
        "mask_token": "<mask>",
        "api_key": None,
        "n": 3,
        "mine.api_key": "***",
    }
    assert redacted(value) == shown
    assert redacted(shown) == shown


def test_nested_values_are_redacted() -> None:
    value = {URL: [URL, {"a": (URL, 1, None, 0.5)}], "b": True}
    plain = "ftp://host/train.jsonl"
    assert redacted(value) == {plain: [plain, {"a": [plain, 1, None, 0.5]}], "b": True}


# --- error messages, records and logs

TASK = TaskConfig(train=[URL])


@pytest.mark.parametrize(
    "error",
    [
        no_example(TASK, "train"),
        AdaptError(f"{URL} is gone", f"look at {URL}"),
        DataError(f"two: {URL} and {URL}"),
    ],
)
def test_errors_show_no_password(error: AdaptError) -> None:
    assert "ftp://host/train.jsonl" in str(error)
    assert PASSWORD not in f"{error} {error.what} {error.fix} {error.args} {error!r}"


def test_errors_of_the_modules_show_no_password(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ftp://host/train\.jsonl") as counted:
        check_count(TASK, "train", 3, 2, f"{URL}, line 1: no text", 1)
    with pytest.raises(ConfigError, match="nowhere://host") as unknown:
        matches(URL.replace("ftp", "nowhere"), (".jsonl",))
    with pytest.raises(ConfigError, match="holds a password") as tracked:
        check_trackers(TrackingConfig(mlflow_uri=URL.replace("ftp", "https")))
    assert not [caught for caught in (counted, unknown, tracked) if PASSWORD in str(caught.value)]


@pytest.mark.parametrize("debug", [False, True])
def test_messages_of_a_job_have_no_password(debug: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def job() -> None:
        log(f"reading {URL}")
        finish("task", URL, {"files": {URL: 3}})
        raise ValueError(f"cannot parse {URL}")

    assert attempt(job, debug) == 70
    said = capsys.readouterr()
    assert PASSWORD not in said.out + said.err
    assert said.err.count("ftp://host/train.jsonl") == 2 + debug
    assert json.loads(said.out)["metrics"] == {"files": {"ftp://host/train.jsonl": 3}}


EMPTY: dict[str, Any] = {name: {} for name in ("inputs", "cost", "resources", "outputs", "packages")}


def test_records_and_logs_of_a_stage_have_no_password(tmp_path: Path) -> None:
    values: dict[str, Any] = {"what": {"model": URL}, "metrics": {"evaluation_texts": {"exam": {URL: 3}}}}
    Record("prepare", "x", "key", 1, **values, **EMPTY, started_at="", path=tmp_path).save()
    assert PASSWORD not in (tmp_path / "stage.json").read_text()
    record = load_record(tmp_path)
    assert record
    assert record.metrics["evaluation_texts"] == {"exam": {"ftp://host/train.jsonl": 3}}
    assert PASSWORD not in Manifest([Part(URL, 1, "0")]).to_json()

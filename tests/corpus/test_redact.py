"""What is stored and shown of URLs holds no secrets, and nothing else is lost."""

import pytest

from adapt.corpus.redact import redact

CASES = {
    "s3://bucket/folder/a.jsonl": "s3://bucket/folder/a.jsonl",
    "ftp://user:pass@host/a.jsonl": "ftp://host/a.jsonl",
    "https://token@host:80/a.jsonl?sig=abc&x=1": "https://host:80/a.jsonl",
    "https://host/a.jsonl?sig=a%2Fb/c": "https://host/a.jsonl",
    "404, message='Not Found', url='https://u:p@h/a?k=secret'": "404, message='Not Found', url='https://h/a'",
    "s3://bucket/part-?.jsonl": "s3://bucket/part-?.jsonl",
    "/data/a@b/what?=1.jsonl": "/data/a@b/what?=1.jsonl",
    "hf://datasets/owner/name@main/a.parquet": "hf://datasets/owner/name@main/a.parquet",
}


@pytest.mark.parametrize("text", CASES)
def test_secrets_go_and_the_rest_stays(text: str) -> None:
    assert redact(text) == CASES[text]

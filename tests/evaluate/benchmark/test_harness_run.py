"""Tests scoring with the real lm-evaluation-harness on a tiny decoder, offline."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from adapt.config import HarnessConfig
from adapt.evaluate.benchmark.harness_tasks import (
    HarnessRun,
    HarnessTasks,
    built_in_tasks,
    harness_tasks,
    score_harness,
)
from adapt.evaluate.benchmark.item_scores import file_name, read_items
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError
from tests.evaluate.benchmark.tiny_tasks import task_folder, tiny_decoder

pytest.importorskip("lm_eval", reason="needs pip install 'dontstop[harness]'")

from adapt.evaluate.benchmark import harness_run
from adapt.evaluate.benchmark.harness_run import use_sandbox


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoder(tmp_path_factory.mktemp("decoder"))


def run_of(decoder: Path, tasks: Path, *names: str, functions: list[str] | None = None) -> HarnessRun:
    config = HarnessConfig(tasks=[*names], include_path=str(tasks), functions=functions or [])
    return HarnessRun(Pretrained(decoder, decoder), harness_tasks(config, Digests()), 256)


def log_likelihood(decoder: Path, context: str, answer: str) -> float:
    """Computes log p(answer | context) [nats] with the library `transformers`, without the harness."""
    tokenizer, model = load_tokenizer(decoder), GPT2LMHeadModel.from_pretrained(decoder).eval()
    both, first = tokenizer(context + answer)["input_ids"], len(tokenizer(context)["input_ids"])
    if not context:  # without context, the harness adds a start token, even if the tokenizer has already added one
        both, first = [tokenizer.bos_token_id, *both], 1
    with torch.inference_mode():
        logits = model(torch.tensor([both])).logits[0].log_softmax(-1)
    return float(sum(logits[place - 1, both[place]] for place in range(first, len(both))))


def test_scores_are_those_of_a_plain_computation_and_finished_tasks_are_kept(decoder: Path, tmp_path: Path) -> None:
    tasks, out = task_folder(tmp_path / "tasks"), tmp_path / "out"
    out.mkdir()
    run = run_of(decoder, tasks, "choice", "pages")
    score_harness(run, str(out))
    found = read_items(out)
    rows = [json.loads(line) for line in (tasks / "choice.jsonl").read_text().splitlines()]
    hits, normed = [], []
    for row in rows:
        scores = [log_likelihood(decoder, f"{row['question']} and", f" {choice}") for choice in row["choices"]]
        lengths = [len(choice) for choice in row["choices"]]
        hits.append(float(max((0, 1), key=scores.__getitem__) == row["answer"]))
        normed.append(float(max((0, 1), key=lambda n: scores[n] / lengths[n]) == row["answer"]))
    measures = found["choice"].measures
    assert measures["acc"].columns == [hits]
    assert measures["acc_norm"].columns == [normed]
    assert (found["choice"].main, found["choice"].items, found["choice"].library) == ("acc", 12, "harness")
    assert (found["choice"].texts or [])[1] == [f"{rows[1]['question']} and {rows[1]['choices'][1]}"]
    pages = [json.loads(line)["page"] for line in (tasks / "pages.jsonl").read_text().splitlines()]
    total = sum(log_likelihood(decoder, "", page) for page in pages)
    bits = found["pages"].measures["bits_per_byte"]
    assert bits.statistic == "bits_per_byte"
    assert not bits.higher_is_better
    assert bits.score == pytest.approx(-total / sum(map(len, pages)) / math.log(2), rel=1e-4)
    assert found["pages"].tokens > 0
    assert found["pages"].seconds > 0

    (out / file_name("pages")).unlink()  # deletes one result, as if the process had been killed after the first task
    before = (out / file_name("choice")).stat().st_mtime_ns
    score_harness(run, str(out))
    assert (out / file_name("choice")).stat().st_mtime_ns == before
    assert read_items(out)["pages"].measures == found["pages"].measures


def test_templates_cannot_reach_python_and_functions_are_called_if_allowed(decoder: Path, tmp_path: Path) -> None:
    tasks, out = task_folder(tmp_path / "tasks", 3), tmp_path / "out"
    out.mkdir()
    file = tasks / "choice.yaml"
    plain = file.read_text()
    file.write_text(plain.replace("{{question}} and", "{{question.__class__.__mro__}}"))
    with pytest.raises(DataError, match="the task choice cannot be measured: SecurityError"):
        score_harness(run_of(decoder, tasks, "choice"), str(out))
    file.write_text(plain.replace('"{{question}} and"', "!function code.asked"))
    (tasks / "code.py").write_text("def asked(doc):\n    return doc['question'] + ' so'\n")
    score_harness(run_of(decoder, tasks, "choice", functions=["choice"]), str(out))
    assert " so " in (read_items(out)["choice"].texts or [])[0][0]


def test_groups_are_one_task_and_a_limit_takes_the_first_items(decoder: Path, tmp_path: Path) -> None:
    tasks, out = task_folder(tmp_path / "tasks", 6), tmp_path / "out"
    out.mkdir()
    (tasks / "twin.yaml").write_text((tasks / "choice.yaml").read_text().replace("task: choice", "task: twin"))
    (tasks / "both.yaml").write_text("group: both\ntask: [choice, twin]\n")
    run = run_of(decoder, tasks, "both")
    limited = replace(run, tasks=replace(run.tasks, config=replace(run.tasks.config, limit=4)))
    score_harness(limited, str(out))
    found = read_items(out)["both"]
    assert (found.items, len(found.measures["acc"].columns[0])) == (8, 8)
    assert found.digests[:4] == found.digests[4:]


def test_tasks_of_the_harness_are_known_by_name(tmp_path: Path) -> None:
    known = built_in_tasks()
    assert str(known["arc_easy"]).endswith("arc_easy.yaml")
    assert {"mmlu", "ai2_arc", "wikitext", "hellaswag"} <= {*known}
    for name, said in (("humaneval", "code that a model writes"), ("arc_easyy", "did you mean arc_easy")):
        with pytest.raises(ConfigError, match=said):
            harness_tasks(HarnessConfig(tasks=[name]), Digests())


def test_the_sandbox_keeps_the_filters_of_the_harness() -> None:
    from lm_eval import utils

    use_sandbox()
    assert utils.apply_template("{{ text | regex_replace('a', 'b') }}", {"text": "aa"}) == "bb"


def test_the_files_of_the_harness_are_parsed_once(
    decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks of the harness share one `TaskManager`, because each takes a minute to read 14,000 files."""
    made: list[str] = []
    choice = task_folder(tmp_path / "tasks", 3) / "choice.yaml"

    class Index(harness_run.TaskManager):
        def __init__(self) -> None:
            made.append("index")
            super().__init__(include_path=choice.parent, include_defaults=False)

    monkeypatch.setattr(harness_run, "TaskManager", Index)
    monkeypatch.chdir(choice.parent)
    harness_run.built_in_index.cache_clear()
    built_in = HarnessTasks(HarnessConfig(tasks=["choice", "pages"]), {}, {}, {})
    score_harness(HarnessRun(Pretrained(decoder, decoder), built_in, 256), str(tmp_path))
    harness_run.built_in_index.cache_clear()
    assert {*read_items(tmp_path)} == {"choice", "pages"}
    assert made == ["index"]

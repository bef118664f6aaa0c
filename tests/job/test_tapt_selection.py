"""Tests TAPT with a user-defined selection, from the command line to the selected documents, and its key."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import Config, SelectConfig
from adapt.job.training_jobs import SELECTION, TAPT_JOB, tapt_stages
from adapt.parse import parse
from adapt.runner import ensure
from adapt.select import TEXTS_FILE
from adapt.stage.context import Context
from adapt.stage.export_model import Export
from adapt.stage.prepare_text import PrepareTexts
from adapt.stage.select_documents import Select
from adapt.support.errors import ConfigError
from tests.job.worlds import task_world
from tests.samples import with_labels, write

OWN = """
from dataclasses import dataclass
from adapt.select.selection import Selection

@dataclass(frozen=True)
class Options:
    at_least: int = 1

class Alike(Selection):
    Options = Options

    def scores(self, pool, target):
        known = {word for text in target for word in text.split()}
        for text in pool:
            shared = len(known & set(text.split()))
            yield float(shared if shared >= self.options.at_least else 0)
"""
POOL = ["the stars and the moon", "genes of the cell", "a cell divides", "stars", "genes and proteins of a cell"]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes the source code of a user-defined selection and returns the path of the file."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_selection", raising=False)
    file = tmp_path / "own_selection.py"
    file.write_text(OWN)
    return file


def selected(export: Export) -> Select:
    pool = export.training.corpora[SELECTION]
    assert isinstance(pool, PrepareTexts)
    assert isinstance(pool.texts, Select)
    return pool.texts


def test_the_documents_with_the_highest_scores_are_selected(tmp_path: Path, tiny_bert: Path) -> None:
    splits = {"train": ["genes of a cell", "a cell"], "dev": ["nothing like it"], "test": ["the test text"]}
    files = {split: write(tmp_path / f"{split}.jsonl", with_labels(texts)) for split, texts in splits.items()}
    arguments = [
        f"--model.path={tiny_bert}",
        *(f"--task.{split}={file}" for split, file in files.items()),
        f"--select.pool_paths={write(tmp_path / 'pool.jsonl', [{'text': text} for text in POOL])}",
        "--select.per_example=1",
        # Without this option, the job would need Ray, to prepare the dev and test texts before the selection.
        "--tapt.transductive=true",
        "--select.kind=own_selection:Alike",
        "--alike.at_least=3",
        "--corpus.cleaning=[]",
        "--corpus.heldout_fraction=0",
        "--training.sequence_length=64",
        "--evaluation.sequence_length=64",
        f"--storage.root={tmp_path / 'runs'}",
    ]
    context = Context.of(parse(arguments, "jobs/tapt.py", TAPT_JOB.kind))
    done = ensure(selected(tapt_stages(context)), context.store)
    lines = [json.loads(line) for line in (done.path / TEXTS_FILE).read_text().splitlines()]
    assert [(line["id"], line["score"], line["text"]) for line in lines] == [(1, 3.0, POOL[1]), (4, 4.0, POOL[4])]
    assert done.record.what["steps"][0]["options"] == {"at_least": 3}


# --- the key


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    drawn = SelectConfig(pool_paths="data/pool.jsonl", per_example=2)
    return replace(task_world(tmp_path, monkeypatch), select=drawn)


def built(config: Config, kind: str = "own_selection:Alike", **options: object) -> Select:
    chosen = replace(config, select=replace(config.select, kind=kind), select_options={"alike": dict(options)})
    return selected(tapt_stages(Context.of(chosen)))


def test_its_options_and_its_source_are_part_of_the_key(config: Config, own: Path) -> None:
    one = built(config).key
    assert one != built(config, "random").key
    assert one == built(config, at_least=1).key  # 1 is the default of `at_least`.
    assert one != built(config, at_least=2).key
    own.write_text(OWN + "\n# changed\n")
    assert one != built(config).key


def test_its_folder_is_named_after_its_class(config: Config) -> None:
    assert built(config).name == "dapt-Alike"
    assert built(config, "random").name == "dapt-random"


def test_a_missing_selection_is_refused_before_anything_runs(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"select\.kind: there is no 'rnadom'") as caught:
        built(config, "rnadom")
    assert caught.value.fix == "did you mean random?"
    assert not list(Path(config.storage.root).glob("*/*"))

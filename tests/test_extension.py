"""The examples of docs/develop/extending.md work from a folder outside the package."""

import json
import re
from pathlib import Path

import pytest
import yaml

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.config import Config
from adapt.corpus.entities import tagged
from adapt.embed.embedder import embedder_of
from adapt.job.training_jobs import dapt_stages
from adapt.method.table import method_of
from adapt.parse import parse
from adapt.stage.context import Context
from tests.drive import run_forked
from tests.samples import sentences, write

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "develop" / "extending.md").read_text("utf-8")
FILE = re.compile(r'^```python title="(mine/\w+\.py)"\n(.*?)^```', re.DOTALL | re.MULTILINE)
FRAGMENT = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """Returns an importable folder that holds the package `mine`."""
    folder = tmp_path_factory.mktemp("outside")
    for name, text in FILE.findall(PAGE):
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


def settings() -> dict[str, object]:
    """Returns the contents of all YAML blocks of the page, merged into one mapping."""
    found: dict[str, object] = {}
    for text in FRAGMENT.findall(PAGE):
        found |= yaml.safe_load(text)
    return found


def test_every_code_block_of_the_page_is_read_by_this_test() -> None:
    assert len(re.findall(r"^```\w", PAGE, re.MULTILINE)) == len(FILE.findall(PAGE)) + len(FRAGMENT.findall(PAGE))


def test_a_user_defined_embedder_embeds(mine: Path) -> None:
    embedder = embedder_of("mine.embedder:Letters", {"alphabet": "ab"}, 0)
    embedder.load(None)
    found = embedder.embed(["Abba", "xyz"])
    assert (found.vectors.tolist(), found.seen, found.unknown) == ([[2, 2], [0, 0]], 2, 1)


def test_a_user_defined_tagger_tags(mine: Path) -> None:
    assert tagged(["the BRCA1 gene"], "mine.tagger:Genes") == [[(4, 9)]]


@pytest.fixture
def config_file(mine, tiny_bert, tmp_path):
    """Writes a configuration file that uses the page's method, block and objective."""
    corpus = write(tmp_path / "corpus.jsonl", [{"text": text} for text in [*sentences(200), "ALL OF THIS IS LOUD."]])
    given = settings()
    content = {
        "model": {"path": str(tiny_bert)},
        "corpus": {**given["corpus"], "paths": corpus, "heldout_fraction": 0.1},
        "objective": given["objective"],
        "method": given["method"],
        "damped": given["damped"],
        "training": {"max_steps": 2, "global_batch_size": 4, "sequence_length": 32},
        "evaluation": {"sequence_length": 32, "max_documents": 10},
        "storage": {"root": str(tmp_path / "runs")},
    }
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def configured(file: Path, *more: str) -> Config:
    return parse(["--config", str(file), *more], "jobs/dapt.py")


def test_method_block_and_objective_of_the_page_are_parsed_with_their_options(config_file):
    config = configured(config_file)
    method = method_of(config)
    assert type(method).__name__ == "Damped"
    assert method.options.factor == 0.25
    assert method_of(configured(config_file, "--damped.factor=2")).options.factor == 2


def test_keys_contain_options_and_source_of_user_code(config_file, mine):
    def key(*more: str) -> str:
        return dapt_stages(Context.of(configured(config_file, *more))).training.key

    first = key()
    assert key() == first
    assert key("--damped.factor=2") != first
    source = mine / "mine" / "method.py"
    text = source.read_text()
    try:
        source.write_text(text + "# changed\n")
        assert key() != first
    finally:
        source.write_text(text)


@pytest.mark.slow
def test_a_model_is_trained_with_the_method_block_and_objective_of_the_page(config_file, mine):
    job = ["jobs/dapt.py", "--config", str(config_file)]
    ended = run_forked(job, ROOT, PYTHONPATH=str(mine))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["metrics"]["steps"] == 2
    prepared = next((config_file.parent / "runs" / "prepare").glob("*/stage.json"))
    assert json.loads(prepared.read_text())["metrics"]["dropped"] == {"shouting": 1}

    # The job of the page uses the text that the training has already prepared, so it needs no cluster.
    density = [str(mine / "mine" / "density.py"), "--config", str(config_file)]
    ended = run_forked(density, ROOT, PYTHONPATH=str(mine))
    assert ended.returncode == 0, ended.stderr
    text = json.loads(prepared.read_text())["metrics"]
    mean = json.loads(ended.stdout.splitlines()[-1])["metrics"]["tokens_per_document"]
    assert mean == pytest.approx(text["train_tokens"] / text["train_documents"])


def test_the_job_of_the_page_works_in_a_chain_file(config_file, mine, tmp_path):
    file = tmp_path / "chain.yaml"
    model = {"model.path": yaml.safe_load(config_file.read_text())["model"]["path"]}
    file.write_text(yaml.safe_dump({"common": model, "stages": settings()["stages"]}))
    (node,) = expand_chain(read_chain(str(file)))
    assert (node.label, node.job.name) == ("density", "density")


def test_selection_and_embedder_of_the_page_are_parsed_with_their_options(mine, tmp_path):
    given = {name: settings()[name] for name in ("select", "overlap", "select.embedder", "letters")}
    file = tmp_path / "select.yaml"
    file.write_text(yaml.safe_dump(given))
    options = configured(file, "--select.pool_paths=a").select_options
    assert options == {"overlap": {"shortest": 5}, "letters": {"alphabet": "aeiou"}}


def test_the_selection_of_the_page_prefers_documents_like_the_target(mine):
    from adapt.select.choose import highest
    from adapt.select.table import selection_of
    from tests.select.pools import given, numbered

    selection = selection_of(settings()["select"]["kind"], settings()["overlap"], 0)
    pool = numbered(["gradients of layers", "nothing alike here", "gradients everywhere"])
    target = ["gradients of deep layers"]
    selection.learn(given(pool, target))
    taken = highest(selection, pool, target, 2)
    assert [(text, score) for _, text, score in taken] == [
        ("gradients of layers", 0.75),
        ("gradients everywhere", 0.25),
    ]

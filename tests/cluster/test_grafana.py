"""Tests that every graph of the Grafana dashboard has data from Prometheus while a model trains."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from cluster.here.nodes import Nodes
from cluster.here.processes import free_port
from tests.forks.nodes import become_member, forked_nodes
from tests.forks.server import Forked
from tests.samples import sentences

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "cluster" / "grafana.json").read_text())
ALL = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [each for each in ALL if "eval_past_loss" not in each]
"""All expressions except the loss on earlier domains, which only sequences of domains report."""
PROMETHEUS = shutil.which("prometheus")
PATIENCE_S = 600.0
"""Longest time to wait [s]. The steps take a minute on an idle machine."""
SERIES = re.compile(r"^(\w+)\{(.*)\} (\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    often = {"RAY_metrics_report_interval_ms": "1000"}
    with forked_nodes(tmp_path_factory.mktemp("cluster"), with_jobs=True, further=often) as cluster:
        cluster.start_head()
        cluster.add(2)
        yield cluster


@pytest.fixture(scope="module")
def training(cluster: Nodes, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Starts a training run with DAS, the only method that reports plasticity.

    The training runs until the tests of this module have ended.
    """
    folder = tmp_path_factory.mktemp("training")
    for name, texts in {"corpus": sentences(400), "general": sentences(40, seed=1)}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    values = {
        "--name": "watched",
        "--model.path": tiny_bert,
        "--method.kind": "das",
        "--corpus.paths": folder / "corpus.jsonl",
        "--training.max_steps": 1_000_000,
        "--training.global_batch_size": 8,
        "--training.sequence_length": 64,
        "--evaluation.sequence_length": 64,
        "--evaluation.general_paths": folder / "general.jsonl",
        "--evaluation.interval_steps": 1,
        "--evaluation.share": 0.9,
        "--training.log_interval_steps": 1,
        "--storage.root": folder / "runs",
        "--resources.address": cluster.address,
    }
    given, files = [str(word) for pair in values.items() for word in pair], [f"{folder}/out", f"{folder}/err"]
    process = Forked(become_member, f"{ROOT}/jobs/dapt.py", given, dict(cluster.environment), files)
    try:
        wait(lambda: list(folder.glob("runs/train/*/metrics.jsonl")), process, folder / "err")
        yield
    finally:
        process.kill()
        process.wait()


def wait(holds: Callable[[], object], process: "subprocess.Popen[bytes] | Forked", said: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.5)


def targets(cluster: Nodes) -> Path:
    """Returns the file in which Ray lists the addresses of the metrics for Prometheus."""
    return cluster.head.folder / "prom_metrics_service_discovery.json"


def served_at(target: str) -> str:
    """Returns the metrics of a node, or an empty text if its endpoint has not started."""
    try:
        with urlopen(f"http://{target}/metrics", timeout=30) as answer:
            served: str = answer.read().decode()
    except URLError:
        return ""
    return served


def test_every_graph_has_a_series_of_the_training(cluster: Nodes, training: None) -> None:
    seen: dict[str, dict[str, str]] = {}
    wanted = {expression.partition("{")[0] for expression in EXPRESSIONS}
    end = time.monotonic() + PATIENCE_S
    while wanted - seen.keys() and time.monotonic() < end:
        for group in json.loads(targets(cluster).read_text()):
            for target in group["targets"]:
                for name, labels, _ in SERIES.findall(served_at(target)):
                    seen[name] = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        time.sleep(0.5)
    assert wanted - seen.keys() == set()
    for name in wanted:
        assert seen[name]["name"] == "watched"
        assert len(seen[name]["key"]) == 16
        assert seen[name]["SessionName"].startswith("session_")


@pytest.mark.skipif(not PROMETHEUS, reason="there is no Prometheus here")
def test_prometheus_finds_every_expression(cluster: Nodes, training: None, tmp_path: Path) -> None:
    found = [{"files": [str(targets(cluster))]}]
    scrape = {"job_name": "ray", "scrape_interval": "1s", "scrape_timeout": "1s", "file_sd_configs": found}
    # a JSON file is also a YAML file
    (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
    port = free_port()
    options = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [str(PROMETHEUS), *options, f"--web.listen-address=127.0.0.1:{port}"], stdout=said, stderr=said
        )

    def series(expression: str) -> list[dict[str, dict[str, str]]]:
        for variable in DASHBOARD["templating"]["list"]:
            expression = expression.replace(f"${variable['name']}", variable.get("allValue", ""))
        query = urlencode({"query": expression})
        try:
            with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=30) as answer:
                found: list[dict[str, dict[str, str]]] = json.load(answer)["data"]["result"]
        except URLError:  # the server has not started yet
            return []
        return found

    try:
        for expression in EXPRESSIONS:
            wait(lambda expression=expression: series(expression), process, tmp_path / "said")
            (only,) = series(expression)
            assert only["metric"]["name"] == "watched"
    finally:
        process.kill()
        process.wait()

"""Tests that a submission id depends on the submitted work, and on nothing else."""

import shlex
from pathlib import Path

import pytest

from adapt.submit.submission import command_of
from adapt.submit.submit_order import Order, order_of, read_cluster_command
from adapt.support.errors import ConfigError

CHAIN = """
name: my study
let: {data: /shared/data}
common: {storage.root: /shared/runs}
sets:
  task: [acl_arc, chemprot]
stages:
  dapt: {job: dapt, corpus.paths: "{data}/cs.jsonl.gz"}
  tapt:
    {job: tapt, for: task, from: dapt, task: {name: "{task}", train: "{data}/{task}.jsonl", dev: d.gz, test: t.gz}}
"""


def test_options_of_the_cluster_are_separated_from_those_of_the_work() -> None:
    asked = read_cluster_command(["submit", "a.yaml", "--drive-on", "steady", "--data", "d", "--retries=0", "--again"])
    assert (asked.verb, asked.rest) == ("submit", ["a.yaml", "--data", "d"])
    assert (asked.drive_on, asked.retries, asked.switches) == ("steady", 0, {"again"})
    assert read_cluster_command(["submit", "a.yaml"]).drive_on is None


@pytest.fixture
def chain(tmp_path: Path) -> str:
    file = tmp_path / "chain.yaml"
    file.write_text(CHAIN)
    return str(file)


def test_a_submission_id_depends_on_the_configuration(chain: str) -> None:
    order = order_of([chain])
    assert order.submission(1) == order_of([chain]).submission(1)
    assert order.submission(1).startswith("dontstop-my-study-")
    assert order.submission(2) != order.submission(1)
    for change in (["--data", "/elsewhere"], ["--training.max_steps", "7"], ["--only", "stage=dapt"]):
        assert order_of([chain, *change]).digest != order.digest


def test_the_stage_that_another_starts_from_is_part_of_the_identity(chain: str) -> None:
    before = order_of([chain]).digest
    Path(chain).write_text(CHAIN.replace("from: dapt, ", ""))
    assert order_of([chain]).digest != before


def test_a_single_job_is_identified_by_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("name: tiny\ncorpus: {paths: a.jsonl}\n")
    arguments = ["--job", "dapt", "--config", str(tmp_path / "my.yaml")]
    order = order_of(arguments)
    assert order.name == "tiny"
    assert shlex.split(order.entrypoint) == ["python", "jobs/dapt.py", *arguments[2:]]
    assert shlex.split(order.command("check")) == ["python", "jobs/chain.py", "check", *arguments]
    assert order_of([*arguments, "--seed", "1"]).digest != order.digest


def test_commands_quote_their_arguments(chain: str) -> None:
    order = order_of([chain, "--data", "/a folder/$5;x"])
    assert shlex.split(order.entrypoint) == ["python", "jobs/chain.py", "run", chain, "--data", "/a folder/$5;x"]


def test_the_job_of_a_stage_runs_the_chain_limited_to_it(chain: str) -> None:
    order = order_of([chain, "--only", "task=acl_arc", "--data", "/d"])
    assert list(order.nodes) == ["dapt", "tapt[acl_arc]"]
    node = order.nodes["tapt[acl_arc]"]
    assert node.needed == ["dapt"]
    command = command_of(order, node)
    assert command == [chain, "--data", "/d", "--only=stage=tapt", "--only=task=acl_arc"]
    assert list(order_of(command).nodes) == ["dapt", "tapt[acl_arc]"]


def test_labels_that_differ_by_special_characters_get_different_ids() -> None:
    order = Order("a", "0" * 64, "chain", [], [])
    assert order.submission(1, "x[a, b]") != order.submission(1, "x[a-b]")


def test_a_file_that_is_not_a_chain_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("corpus: {paths: a.jsonl}\n")
    with pytest.raises(ConfigError, match="single job"):
        order_of([str(tmp_path / "my.yaml")])

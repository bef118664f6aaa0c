"""Tests that the copies of a stage's folder on several nodes agree. Each node has its own folder."""

import json
from pathlib import Path

import pytest

from adapt.runner.folder_copy import BLOCK, FolderCopy, HomeFiles, Terms, announced, give_folder, stamps_below
from adapt.support.errors import StorageError

STAGE = "train/name-0123456789abcdef"


class Nodes:
    """The home node of a stage, and two other nodes."""

    def __init__(self, folder: Path) -> None:
        self.roots = [folder / name for name in ("home", "one", "two")]
        self.home = HomeFiles(self.roots[0])
        (self.roots[0] / STAGE).mkdir(parents=True)
        self.copies = [self.copy(number) for number in (1, 2)]

    def copy(self, number: int, outside: tuple[Path, ...] = ()) -> FolderCopy:
        copy = FolderCopy(self.roots[number], STAGE, self.home, Terms("one", [], [str(each) for each in outside], None))
        copy.begin()
        return copy

    def file(self, number: int, name: str) -> Path:
        file = self.roots[number] / STAGE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def contents(self, number: int) -> dict[str, bytes]:
        folder = self.roots[number] / STAGE
        return {name: (folder / name).read_bytes() for name in stamps_below(folder)}


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_what_a_node_wrote_is_at_home_and_on_the_other_node(nodes: Nodes) -> None:
    large = bytes(range(256)) * (BLOCK // 256) + b"and a part of a block"
    nodes.file(1, "shards/large").write_bytes(large)
    nodes.file(1, "empty").touch()
    nodes.file(1, ".hidden").write_text("not sent")
    nodes.copies[0].send()
    nodes.copies[1].fetch()
    assert nodes.contents(0) == nodes.contents(2) == {"shards/large": large, "empty": b""}
    assert [file.name for file in (nodes.roots[0] / STAGE).rglob(".*")] == []


def test_only_wanted_files_are_fetched_and_gone_ones_are_removed(nodes: Nodes) -> None:
    for name in ("checkpoints/a/weights", "metrics.jsonl", "model/weights"):
        nodes.file(0, name).write_text(name)
    copy = nodes.copies[0]
    copy.fetch(leaves=("checkpoints/", "model/"))
    assert nodes.contents(1) == {"metrics.jsonl": b"metrics.jsonl"}
    copy.fetch(("checkpoints/a/",))
    assert sorted(nodes.contents(1)) == ["checkpoints/a/weights", "metrics.jsonl"]
    nodes.file(0, "checkpoints/a/weights").unlink()
    copy.fetch(("checkpoints/a/",))
    copy.send()
    assert sorted(nodes.contents(1)) == ["metrics.jsonl"]
    assert sorted(nodes.contents(0)) == ["metrics.jsonl", "model/weights"]


def test_added_lines_are_sent_alone_and_a_new_file_as_a_whole(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    extend = nodes.home.extend
    monkeypatch.setattr(nodes.home, "extend", lambda *given: (sent.append(given[2]), extend(*given)))
    file, copy = nodes.file(1, "metrics.jsonl"), nodes.copies[0]
    file.write_text("1\n2\n3\n")
    copy.send()
    with file.open("a") as opened:
        opened.write("4\n")
    copy.send()
    assert sent == [b"4\n"]
    aside = file.with_name(".aside")
    aside.write_text("1\n2\nthree\nfour\n")  # a run that resumes from step 2 replaces later lines
    aside.replace(file)
    copy.send()
    assert sent == [b"4\n"]
    assert nodes.contents(0) == {"metrics.jsonl": b"1\n2\nthree\nfour\n"}


def test_files_through_which_processes_talk_appear_and_disappear_everywhere(nodes: Nodes) -> None:
    late, wish = "stalls/group/late-rank-1", "checkpoint-now"
    nodes.file(1, late).touch()
    nodes.file(0, wish).write_text("please")

    def meet() -> list[set[str]]:
        for copy in (*nodes.copies, *nodes.copies):
            copy.meet()
        return [set(nodes.contents(number)) for number in range(3)]

    assert meet() == [{late, wish}] * 3
    nodes.file(1, late).unlink()
    assert meet() == [{wish}] * 3
    nodes.file(0, wish).unlink()
    assert meet() == [set()] * 3


def test_a_node_takes_what_another_node_has_added_to_its_file(nodes: Nodes) -> None:
    """For example, if rank 0 moves to another node and back, both nodes append to the file of metrics in turn."""
    one, two = nodes.copies
    nodes.file(1, "metrics.jsonl").write_text("1\n")
    one.send()
    two.fetch()
    nodes.file(2, "metrics.jsonl").write_text("1\n2\n")
    two.send()
    one.send()
    one.fetch()
    assert nodes.contents(0) == nodes.contents(1) == {"metrics.jsonl": b"1\n2\n"}


def test_files_of_an_earlier_attempt_do_not_come_back(nodes: Nodes) -> None:
    nodes.file(1, "old").write_text("old")
    nodes.copies[0].send()
    nodes.file(0, "old").unlink()  # the stage starts again on its home node
    nodes.file(0, "new").write_text("new")
    copy = nodes.copy(1)
    copy.send()
    assert nodes.contents(1) == {}
    assert nodes.contents(0) == {"new": b"new"}


def test_a_large_file_that_grows_is_sent_when_it_is_whole(nodes: Nodes) -> None:
    file, copy = nodes.file(1, "model/weights"), nodes.copies[0]
    for count in (1, 2):
        file.write_bytes(b"w" * (BLOCK + count))
        copy.meet()
        assert nodes.contents(0) == {}
    copy.meet()
    assert len(nodes.contents(0)["model/weights"]) == BLOCK + 2


def test_a_model_outside_of_the_root_is_copied_to_the_same_path(nodes: Nodes, tmp_path: Path) -> None:
    class Elsewhere(HomeFiles):
        """A home node that has the model, while this node does not have it."""

        def stamps(self, folder, beginnings=("",)):  # type: ignore[no-untyped-def]
            return super().stamps(folder.replace("here", "there"), beginnings)

        def read(self, file, offset, count):  # type: ignore[no-untyped-def]
            return super().read(file.replace("here", "there"), offset, count)

    (tmp_path / "there" / "sub").mkdir(parents=True)
    (tmp_path / "there" / "sub" / "weights").write_text("weights")
    (tmp_path / "there" / ".hidden").write_text("config")
    nodes.home = Elsewhere(nodes.roots[0])
    nodes.copy(1, (tmp_path / "here",))
    assert (tmp_path / "here" / "sub" / "weights").read_text() == "weights"
    assert (tmp_path / "here" / ".hidden").read_text() == "config"


def test_damage_on_the_way_and_paths_that_lead_out_are_refused(nodes: Nodes, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="its checksum differs"):
        nodes.home.write(f"{STAGE}/file", "copy", 0, b"content", 1)
    with pytest.raises(StorageError, match="not in the storage root"):
        nodes.home.remove("../two")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "state").write_text("state")
    give_folder(nodes.home, tmp_path / "given", f"{STAGE}/checkpoints/run/step-1")
    assert nodes.contents(0) == {"checkpoints/run/step-1/state": b"state"}


def test_terms_are_known_while_a_stage_runs(nodes: Nodes) -> None:
    folder = nodes.roots[0] / STAGE
    assert nodes.home.terms(STAGE) is None
    with announced(folder, [nodes.roots[0] / "prepare/a-1"], [Path("/model")], 2.0):
        terms = nodes.home.terms(STAGE)
        assert terms
        assert json.loads(json.dumps(terms[1:])) == [["prepare/a-1"], ["/model"], 2.0]
    assert nodes.home.terms(STAGE) is None

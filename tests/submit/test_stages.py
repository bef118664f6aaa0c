"""The stages of a chain as jobs: in order, side by side, begun again, left out, and never twice."""

from typing import Any

import pytest

from adapt.chain.expand import Node
from adapt.errors import StageError
from adapt.job.registry import JOBS
from adapt.parse import parse_values
from adapt.submit.jobs import JobCluster
from adapt.submit.order import Order
from adapt.submit.stages import run_as_jobs
from tests.submit.fakes import FakeClient

CONFIG = parse_values({"corpus": {"paths": "a.jsonl"}}, JOBS["dapt"].kind, "test")


def order(**needs: str | None) -> Order:
    """A chain of stages, each with the one that it starts from."""
    nodes = {name: Node(name, JOBS["dapt"], {}, CONFIG, lambda _: CONFIG, start) for name, start in needs.items()}
    return Order("study", "ab" * 32, "chain", ["chain.yaml"], [CONFIG], nodes)


DIAMOND = order(a=None, b="a", c="a", d="b", e=None)


class Ends:
    """Ends every job at the second look at it, as `codes` says of its stage, time after time; else well."""

    def __init__(self, **codes: list[int | None]) -> None:
        self.codes, self.seen, self.most = codes, set[str](), 0

    def __call__(self, client: FakeClient) -> None:
        living = [job for job in client.found if not job.status.is_terminal()]
        self.most = max(self.most, len(living))
        for job in living:
            if job.submission_id in self.seen:
                codes = self.codes.get(job.metadata["dontstop_part"])
                code = codes.pop(0) if codes else 0
                job.end("SUCCEEDED" if code == 0 else "FAILED", code, "why")
            self.seen.add(job.submission_id)


def ran(client: Any, chain: Order = DIAMOND, at_once: int = 9, **given: Any) -> dict[str, int]:
    return run_as_jobs(JobCluster(client, {}, 1), chain, at_once, wait=lambda seconds: None, **given)


def parts(client: FakeClient) -> list[str]:
    return [job.metadata["dontstop_part"] for job in client.found]


def test_stages_begin_when_what_they_need_is_finished() -> None:
    client = FakeClient(Ends())
    assert ran(client) == {"finished": 5, "begun": 5}
    begun = parts(client)
    assert sorted(begun) == ["a", "b", "c", "d", "e"]
    assert begun.index("a") < begun.index("b") < begun.index("d")
    assert begun.index("a") < begun.index("c")
    assert client.job("study-b").entrypoint == "python jobs/chain.py run chain.yaml --only=stage=b"


@pytest.mark.parametrize("at_once", [1, 2])
def test_independent_stages_run_side_by_side_up_to_a_number(at_once: int, capsys: pytest.CaptureFixture[str]) -> None:
    ends = Ends()
    ran(FakeClient(ends), at_once=at_once)
    assert ends.most == at_once
    assert f"waits: {at_once} jobs live already (resources.stages_at_once)" in capsys.readouterr().err


def test_a_lost_job_begins_again_so_often() -> None:
    client = FakeClient(Ends(b=[None, 0]))
    assert ran(client) == {"finished": 5, "begun": 6}
    with pytest.raises(StageError, match="1 stages failed, and 1 that need them were left out; the first: b: why"):
        ran(FakeClient(Ends(b=[None, None, 0])))


def test_a_failure_leaves_out_what_needs_it_and_nothing_else() -> None:
    client = FakeClient(Ends(b=[2]))
    with pytest.raises(StageError, match="left out; the first: b"):
        ran(client)
    assert sorted(parts(client)) == ["a", "b", "c", "e"]


def test_a_second_run_takes_over_what_works_and_what_has_ended_well() -> None:
    client = FakeClient(Ends())
    for part, status in (("a", "SUCCEEDED"), ("e", "RUNNING"), ("b", "FAILED")):
        client.submit_job("", DIAMOND.submission(1, part), {}, DIAMOND.metadata(part))
        client.found[-1].end(status, 2 if status == "FAILED" else 0)
    assert ran(client) == {"finished": 5, "begun": 3}
    assert sorted(parts(client)) == ["a", "b", "b", "c", "d", "e"]
    assert client.found[3].submission_id == DIAMOND.submission(2, "b")


def test_asked_for_again_all_begin_anew() -> None:
    client = FakeClient(Ends())
    ran(client)
    assert ran(client, again=True) == {"finished": 5, "begun": 5}


def test_an_interrupted_run_stops_its_jobs() -> None:
    def interrupted(client: FakeClient) -> None:
        if len(client.found) == 2:
            raise KeyboardInterrupt

    client = FakeClient(interrupted)
    with pytest.raises(KeyboardInterrupt):
        ran(client, order(a=None, b=None))
    assert sorted(client.stopped) == [job.submission_id for job in client.found]

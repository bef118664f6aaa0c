from pathlib import Path

import pytest
import torch

from adapt.support.errors import TrainingError
from adapt.train.checkpoints.reshape import TAG
from adapt.train.checkpoints.stored_checkpoints import WEIGHTS_FILE, weights_in_file
from tests.train.toy import Case, assert_close, build, reference, train

SHAPES = [(1, 0), (2, 0), (2, 1), (1, 2), (2, 2), (1, 3), (2, 3)]  # (number of ranks, ZeRO stage)
CHANGES = [
    # the number of ranks changes
    *[((2, 0), (1, 0)), ((2, 2), (1, 2)), ((1, 2), (2, 2)), ((2, 3), (1, 3)), ((1, 3), (2, 3))],
    *[((2, 0), (2, 2)), ((1, 0), (1, 3)), ((2, 2), (2, 0)), ((2, 3), (2, 0)), ((2, 1), (2, 2))],  # the stage changes
    # the number of ranks and the ZeRO stage change
    *[((2, 2), (1, 3)), ((1, 3), (2, 1)), ((1, 0), (2, 3)), ((2, 3), (1, 0))],
]


@pytest.fixture(scope="module")
def saved(ranks, tmp_path_factory) -> dict[tuple[int, int], Path]:
    """Returns folders of checkpoints of step 3, keyed by (number of ranks, ZeRO stage)."""
    folders = {shape: tmp_path_factory.mktemp("{}-{}".format(*shape)) for shape in SHAPES}
    for (world, stage), folder in folders.items():
        ranks(world).run(train, Case(stage, steps=3, save=folder))
    return folders


@pytest.fixture(scope="module")
def uninterrupted():
    return reference(Case(steps=6))


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_run_resumes_with_other_ranks_and_at_another_stage(ranks, saved, uninterrupted, before, after):
    world, stage = after
    resumed = ranks(world).run(train, Case(stage, steps=6, load=saved[before]))[0]
    assert_close(resumed, uninterrupted, last=3)
    assert not list(ranks(world).temporary.glob("reshaped-*"))


def test_whole_weights_are_read_for_averages_whatever_the_ranks(saved):
    """Checkpoints of ZeRO stages 0 to 2 have whole weights, which `merge.kind average` reads. Stage 3 saves parts."""
    shapes = [shape for shape in SHAPES if shape[1] < 3]
    read = [weights_in_file(saved[shape] / WEIGHTS_FILE) for shape in shapes]
    first = read[0]
    assert len(first.shapes) > 10
    for weights in read[1:]:
        assert weights.shapes == first.shapes
        for name in first.shapes:
            torch.testing.assert_close(weights.read(name), first.read(name), rtol=1e-4, atol=1e-5)
    assert not (saved[2, 3] / WEIGHTS_FILE).exists()


def test_frozen_parameters_are_not_converted(ranks, tmp_path):
    frozen = {"frozen": "embeddings"}
    ranks(2).run(train, Case(2, steps=3, save=tmp_path, **frozen))
    resumed = ranks(1).run(train, Case(3, steps=6, load=tmp_path, **frozen))[0]
    assert_close(resumed, reference(Case(steps=6, **frozen)), last=3)


def refusal(case: Case) -> str:
    """Returns the message of the error that loading raises."""
    with pytest.raises(TrainingError) as caught:
        build(case).engine.load(case.load)
    return str(caught.value)


def test_what_cannot_be_converted_is_refused_on_all_ranks(ranks, tmp_path):
    ranks(1).run(train, Case(2, steps=1, save=tmp_path))
    (shard,) = (tmp_path / TAG).glob("*optim_states.pt")
    shard.write_bytes(shard.read_bytes()[:1000])
    for message in ranks(2).run(refusal, Case(3, load=tmp_path)):
        assert "written by 1 workers at ZeRO stage 2, but this run has 2 at stage 3" in message
        assert "resume with the number of workers and the ZeRO stage of the run that wrote" in message
    assert not list(ranks(2).temporary.glob("reshaped-*"))


class Payload:
    """Imitates a malicious object, which creates a file when its pickle is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return (Path.touch, (self.file,))


@pytest.mark.parametrize("after", [(1, 2), (1, 0)], ids=["as it was written", "converted"])
def test_a_pickle_in_a_checkpoint_runs_nothing(ranks, tmp_path, after):
    """Loading refuses pickled objects. This is a second protection, after the signatures of the seals."""
    folder, ran = tmp_path / "step", tmp_path / "ran"
    ranks(1).run(train, Case(2, steps=1, save=folder))
    for file in (folder / TAG).glob("*.pt"):
        content = torch.load(file, weights_only=False)
        torch.save({**content, "more": Payload(ran)}, file)
    world, stage = after
    (message,) = ranks(world).run(refusal, Case(stage, load=folder))
    assert "contains objects other than tensors" in message
    assert not ran.exists()

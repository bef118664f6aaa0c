"""Tests two users of one storage root. Only root can run these tests, because they change the user id."""

import os
import pickle
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapt.runner import Done, Outcome, Store, ensure, plan_stages
from adapt.runner.digest import Digests, settle
from adapt.runner.files import share_with_group
from adapt.runner.lock import is_held, locked
from adapt.runner.secret import secret_of
from adapt.runner.store import Store as AnyStore
from adapt.support.errors import StageError, StorageError
from tests.runner.toys import Toy, ToyResult, single

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
GROUP = 54321
ANN, BOB = 40001, 40002
MODES = {"group": 0o2775, "sticky": 0o1777}


def as_user(user: int, function: Callable[[], Any]) -> Any:
    """Calls a function in a process of another user. Returns its result or raises its error."""
    out, into = os.pipe()
    if not (child := os.fork()):
        try:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(0o022)
            found = pickle.dumps((True, function()))
        except BaseException as error:
            found = pickle.dumps((False, error))
        os.write(into, found)
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    ended_well, found = pickle.loads(content)
    if not ended_well:
        raise found
    return found


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Imports modules before the user id changes, because the other user may not be able to read Python's files."""
    root = tmp_path_factory.mktemp("own")
    run(root, single(write))
    with pytest.raises(StageError):
        run(root, single(fail, number=2))


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> int:
    return MODES[request.param]


@pytest.fixture
def root(mode: int) -> Iterator[Path]:
    """Yields a storage root that both users can write to."""
    above = Path(tempfile.mkdtemp(prefix="shared-"))
    above.chmod(0o755)
    root = above / "runs"
    root.mkdir()
    os.chown(root, -1, GROUP)
    root.chmod(mode)
    yield root
    shutil.rmtree(above)


def write(folder: Path, done: Done) -> Outcome[ToyResult]:
    (folder / "deep").mkdir(exist_ok=True)
    (folder / "deep" / "file").write_text("text")
    return Outcome(ToyResult())


def fail(folder: Path, done: Done) -> Outcome[ToyResult]:
    (folder / "half").write_text("half")
    raise StageError("it failed")


def run(root: Path, stage: Toy) -> dict[str, str]:
    share_with_group(root)
    digests = Digests.below(root)
    record = ensure(stage, Store(root)).record
    digests.of(record.path / "deep" / "file")
    digests.save()
    secret_of(root)
    return record.digests


def test_two_users_run_stages_of_one_kind_and_read_each_others_results(root: Path) -> None:
    first = single(write, number=1)
    top = Toy("toy", "toy", write, {"number": 3}, first)
    as_user(ANN, lambda: run(root, first))
    assert as_user(BOB, lambda: [line.record is not None for line in plan_stages(top, Store(root))]) == [True, False]
    as_user(BOB, lambda: run(root, top))
    as_user(ANN, lambda: run(root, single(write, number=2)))
    as_user(ANN, lambda: run(root, top))  # the stage is finished, so it does not run again
    assert len(list(Store(root).records())) == 3
    assert {file.stat().st_uid for file in root.glob(".key-*")} == {ANN, BOB}
    assert {stat.S_IMODE(file.stat().st_mode) for file in root.glob(".key-*")} == {0o600}


def test_one_user_waits_for_the_lock_of_another(root: Path) -> None:
    def held() -> bool:
        with locked(root / "toy" / "a-12"):
            return bool(as_user_now(BOB, lambda: is_held(root / "toy" / "a-12")))

    def as_user_now(user: int, function: Callable[[], Any]) -> Any:
        return function()

    as_user(ANN, held)
    with locked(root / "toy" / "a-12"):  # root takes the lock in the folder that Ann created
        assert as_user(BOB, lambda: is_held(root / "toy" / "a-12"))

    def take() -> bool:
        with locked(root / "toy" / "a-12"):
            return True

    assert as_user(BOB, take)
    assert as_user(ANN, take)


def test_a_lock_of_an_earlier_version_can_be_taken(root: Path) -> None:
    """Lock files of earlier versions are writable only for their owner."""

    def old() -> None:
        (root / "toy").mkdir()
        (root / "toy").chmod(0o1777)
        (root / "toy" / ".a-12.lock").touch(0o644)

    def take() -> bool:
        with locked(root / "toy" / "a-12"):
            return True

    as_user(ANN, old)
    assert as_user(BOB, take)


def test_continuing_a_stage_that_another_user_began(root: Path, mode: int) -> None:
    """Members of the group may continue the stage.

    In a folder with the sticky bit, only the first user may continue it. The error names this user.
    """
    stage = single(fail)
    with pytest.raises(StageError, match="it failed"):
        as_user(ANN, lambda: run(root, stage))
    mended = single(write)
    assert mended.key == stage.key
    if mode == MODES["group"]:
        assert as_user(BOB, lambda: run(root, mended)).keys() == {"deep/file", "half"}
        return
    with pytest.raises(StorageError, match=f"was begun by another user \\(id {ANN}\\)") as caught:
        as_user(BOB, lambda: run(root, mended))
    assert "storage.root" in caught.value.fix


def test_a_private_folder_of_one_user_does_not_stop_another(root: Path) -> None:
    theirs, mine = single(write, number=1), single(write, number=2)
    as_user(ANN, lambda: run(root, theirs))
    (folder,) = (root / "toy").glob("toy-*")
    folder.chmod(0o700)
    assert as_user(BOB, lambda: [line.nearest for line in plan_stages(mine, AnyStore(root))]) == [None]
    as_user(BOB, lambda: run(root, mine))
    with pytest.raises((StageError, StorageError), match=str(folder)):
        as_user(BOB, lambda: run(root, theirs))


def test_files_that_only_their_owner_could_read_become_readable(root: Path) -> None:
    def private(folder: Path, done: Done) -> Outcome[ToyResult]:
        os.close(os.open(folder / "weights", os.O_CREAT, 0o600))  # like safetensors, which creates files with this mode
        write(folder, done)
        return Outcome(ToyResult())

    as_user(ANN, lambda: run(root, single(private)))
    (folder,) = (root / "toy").glob("toy-*")
    assert as_user(BOB, lambda: settle_read(folder)) == b""


def settle_read(folder: Path) -> bytes:
    return (folder / "weights").read_bytes()


def test_private_roots_stay_private(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    run(root, single(write))
    assert stat.S_IMODE((root / "toy").stat().st_mode) & 0o022 == 0
    (folder,) = (root / "toy").glob("toy-*")
    (folder / "weights").touch(0o600)
    folder.chmod(0o700)
    settle(folder)
    assert stat.S_IMODE((folder / "weights").stat().st_mode) == 0o600

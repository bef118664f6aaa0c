"""Tests the actors that exchange a stage's files between nodes."""

import time
from pathlib import Path
from typing import Any

import pytest

from adapt.ray.node_files import HomeActor, NodeCopies, file_actor_options
from adapt.runner.folder_copy import announced

pytestmark = pytest.mark.heavy
STAGE = "train/name-0123456789abcdef"


def sent_after_the_restart(copies: Any) -> None:
    import ray

    for _ in range(300):
        try:
            return ray.get(copies.send.remote(STAGE))
        except ray.exceptions.RayActorError:  # the actor has not restarted yet
            time.sleep(0.2)
    return pytest.fail("the actor was not restarted")


def test_a_killed_actor_is_restarted_and_starts_its_copies_again(tmp_path: Path, ray_cluster: None) -> None:
    import ray

    (tmp_path / "home" / STAGE).mkdir(parents=True)
    (tmp_path / "home" / STAGE / "file").write_text("at home")
    options = file_actor_options(ray.get_runtime_context().get_node_id())
    home = ray.remote(**options)(HomeActor).remote(tmp_path / "home")
    copies = ray.remote(**options)(NodeCopies).remote(tmp_path / "node", home)
    with announced(tmp_path / "home" / STAGE, [], [], None):
        ray.get(copies.arrive.remote(STAGE, True, ()))
        ray.kill(copies, no_restart=False)
        (tmp_path / "node" / STAGE / "unsent").write_text("of the lost attempt")
        with pytest.raises(RuntimeError, match="was restarted"):
            sent_after_the_restart(copies)
        ray.get(copies.arrive.remote(STAGE, True, ()))
        (tmp_path / "node" / STAGE / "new").write_text("of the next attempt")
        ray.get(copies.send.remote(STAGE))
    assert {file.name for file in (tmp_path / "home" / STAGE).iterdir()} == {"file", "new"}

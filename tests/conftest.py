"""Keeps Ray and Hugging Face quiet and offline in every test and in the processes that tests start."""

import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from tests.samples import VOCABULARY
from tests.train.ranks import Ranks

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait slow down all other processes
os.environ.pop("TOKENIZERS_PARALLELISM", None)

gc.disable()  # until all is imported: to look for garbage meanwhile, where there is none, takes a fifth of the time

HEAVY = {"ray_cluster", "ranks", "jobs"}
"""Fixtures that start processes: tests that use one are left out of `make quick`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HEAVY & {*getattr(item, "fixturenames", ())}:
            item.add_marker("heavy")
    for item in items:  # coverage of these would cost much time, and most of what they run is in other processes
        if item.get_closest_marker("slow") or item.get_closest_marker("heavy"):
            item.add_marker("no_cover")
    # Files with long tests go first, then heavy ones: so no process is left with a long one when the others are done.
    places = {mark: {item.path for item in items if item.get_closest_marker(mark)} for mark in ("slow", "heavy")}
    items.sort(key=lambda item: (item.path not in places["slow"], item.path not in places["heavy"]))


def pytest_collection_finish() -> None:
    gc.freeze()  # what has been imported stays, and is not looked through again and again
    gc.enable()


settings.register_profile("repeatable", deadline=None, derandomize=True)  # also on a slow or busy machine
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random BERT for 128 tokens (30,000 parameters) and its WordPiece tokenizer. Not to be changed."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    torch.set_num_threads(1)  # so little work is slower on several, by far so on a busy machine
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.2,  # more than usual, so that its answers depend on what it sees
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    BertTokenizer(vocab=vocabulary, model_max_length=128).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Ray on this machine, with 2 CPUs whatever it has, for all tests that need one. Its workers are forked."""
    import ray

    from adapt.config import ResourcesConfig
    from adapt.ray.own import OWN_RAY, remove
    from adapt.ray.runtime import connect
    from tests.forks.process import with_forked_workers

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr(ray, "init", partial(ray.init, num_cpus=2))
        with_forked_workers(patch)
        connect(ResourcesConfig())
    folder = Path(os.environ[OWN_RAY])
    yield
    ray.shutdown()
    remove(folder)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """Gives a running group of the wanted number of ranks."""
    groups: dict[int, Ranks] = {}
    yield lambda world: groups.setdefault(world, Ranks(world))
    for group in groups.values():
        group.stop()

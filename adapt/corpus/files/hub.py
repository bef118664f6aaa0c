"""Repositories that the `datasets` library knows, streamed shard by shard at one commit."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from adapt.config import CorpusConfig
from adapt.corpus.files.fields import TEXT_FIX
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.records import OnId, Reading, texts
from adapt.corpus.files.retry import retried
from adapt.errors import AdaptError, ConfigError, DataError, StorageError


def commit_of(corpus: CorpusConfig) -> str:
    """The commit that a repository's revision stands for now.

    Raises:
        DataError: there is no such repository or revision, or no permission.
        StorageError: the Hub does not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    repository, revision = str(corpus.dataset), corpus.dataset_revision

    def ask() -> str:
        try:
            return str(HfApi().dataset_info(repository, revision=revision).sha)
        except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
            at = f" at revision {revision}" if revision else ""
            raise DataError(
                f"there is no dataset {repository}{at}, or none that you may read",
                "check corpus.dataset and corpus.dataset_revision; for a private dataset, set HF_TOKEN to your access"
                " token",
            ) from error

    return retried(ask, f"the dataset {repository}")


def dataset_shards(corpus: CorpusConfig, commit: str) -> int:
    """How many shards the split has, each of which can be read on its own."""
    return int(_opened(corpus, commit).num_shards)


def read_shard(corpus: CorpusConfig, commit: str, reading: Reading, on_id: OnId | None = None) -> Iterator[str | Bad]:
    """The texts of shard `reading.start`, in order; for a record without text, the reason.

    Raises:
        ConfigError, DataError: as `check_dataset`.
        StorageError: the library gave up on the Hub.
    """
    records = _opened(corpus, commit)
    records = records.shard(num_shards=records.num_shards, index=reading.start)
    try:
        yield from texts(iter(records), reading, on_id)
    except AdaptError:
        raise
    except Exception as error:  # whatever the formats and stores that it reads from raise
        raise StorageError(
            f"reading the dataset {corpus.dataset} failed: {' '.join(str(error).split())}",
            "check the network and the dataset, then run the same command again",
        ) from error


def check_dataset(corpus: CorpusConfig, commit: str, name: str, fix: str = TEXT_FIX) -> None:
    """Looks at the columns of a split.

    Raises:
        ConfigError: there is no such configuration or split.
        DataError: it lacks the field; names those it has.
    """
    records = _opened(corpus, commit)
    columns = records.column_names or list(next(iter(records), {}))
    if columns and name not in columns:
        there = ", ".join(map(repr, columns))
        raise DataError(f"the dataset {corpus.dataset} has no field {name!r}; it has {there}", fix)


def _opened(corpus: CorpusConfig, commit: str) -> Any:
    return _load(str(corpus.dataset), corpus.dataset_config, corpus.dataset_split, commit)


@lru_cache(maxsize=4)  # a worker reads many shards of one split
def _load(repository: str, configuration: str | None, split: str, commit: str) -> Any:
    import datasets

    at = {} if Path(repository).is_dir() else {"revision": commit}

    def load() -> Any:
        try:
            return datasets.load_dataset(repository, configuration, split=split, streaming=True, **at)
        except (ValueError, datasets.exceptions.DatasetNotFoundError) as error:
            raise ConfigError(
                f"the dataset {repository} cannot be opened: {' '.join(str(error).split())}",
                "check corpus.dataset, corpus.dataset_config and corpus.dataset_split",
            ) from error

    return retried(load, f"the dataset {repository}")

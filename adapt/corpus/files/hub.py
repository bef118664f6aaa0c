"""Reads datasets with the `datasets` library, streamed shard by shard at one commit of their repository."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from adapt.config import CorpusConfig
from adapt.corpus.files import delimited, filesystem, formats, storage
from adapt.corpus.files.lines import lines
from adapt.corpus.files.records import TEXT_FIX, Reading, texts
from adapt.support.errors import AdaptError, DataError, StorageError
from adapt.support.paths import user_path

_NETWORK = {"httpx", "httpcore", "aiohttp"}
"""Packages whose errors are network errors."""
_FIX = (
    "check corpus.dataset, dataset_config, dataset_split and dataset_revision; set HF_TOKEN to your access token for a"
    " private dataset, and corpus.dataset_revision to refs/convert/parquet for a dataset with a loading script; or"
    " leave corpus.dataset and corpus.source out, and name the files that hold the texts in corpus.paths, which are"
    " checked record by record"
)
T = TypeVar("T")


def commit_of(corpus: CorpusConfig) -> str:
    """Returns the current commit of a dataset repository's revision.

    Raises:
        DataError: there is no such repository or revision, or no permission to read it.
        StorageError: the Hub does not answer.
    """
    repository, revision = str(corpus.dataset), corpus.dataset_revision
    return _tried(lambda: str(_hub().HfApi().dataset_info(repository, revision=revision).sha), repository)


def _hub() -> Any:
    """Returns the library `huggingface_hub`, which is loaded only for datasets because this takes 0.2 s."""
    import huggingface_hub.errors

    return huggingface_hub


def dataset_shards(corpus: CorpusConfig, commit: str) -> int:
    """Returns the number of shards of a split of a dataset. Each shard can be read separately."""
    return int(_opened(corpus, commit).num_shards)


def read_shard(corpus: CorpusConfig, commit: str, reading: Reading) -> Iterator[str | formats.Bad]:
    """Yields the texts of shard `reading.start`, in order, and a `Bad` reason for each record without text.

    Raises:
        DataError: there is no such configuration or split, or the dataset cannot be opened or read.
        StorageError: the Hub does not answer.
    """
    records = _opened(corpus, commit)
    count = records.num_shards
    with _in_words(str(corpus.dataset)):
        _check_quotes(corpus, commit, reading, count)
    records = records.shard(num_shards=count, index=reading.start)
    with _in_words(str(corpus.dataset)):
        yield from texts(iter(records), reading)


def check_dataset(corpus: CorpusConfig, commit: str, name: str, fix: str = TEXT_FIX) -> None:
    """Checks that a split of a dataset has the field `name`.

    Raises:
        DataError: there is no such configuration or split, or the dataset cannot be opened, or lacks the field. The
            message lists its fields.
        StorageError: the Hub does not answer.
    """
    records = _opened(corpus, commit)
    with _in_words(str(corpus.dataset)):
        columns = records.column_names or list(next(iter(records), {}))
    if columns and name not in columns:
        fields = ", ".join(map(repr, columns))
        raise DataError(f"the dataset {corpus.dataset} has no field {name!r}; it has {fields}", fix)


def _opened(corpus: CorpusConfig, commit: str) -> Any:
    return load_split(str(corpus.dataset), corpus.dataset_config, corpus.dataset_split, commit)


@lru_cache(maxsize=4)  # cached, because a worker reads many shards of one split
def load_split(repository: str, configuration: str | None, split: str, commit: str) -> Any:
    """Opens a split of a data set, whose records are then streamed."""
    place, at = _place(repository, commit)
    return _tried(
        lambda: _library().load_dataset(place, configuration, split=split, streaming=True, **at),
        repository,
    )


def _library() -> Any:
    """Returns the library `datasets`, which is loaded only for datasets because it is large."""
    import datasets

    return datasets


def _place(repository: str, commit: str) -> tuple[str, dict[str, str]]:
    """Returns the path of a dataset, and the option `revision` of the library unless the path is a local folder."""
    folder = user_path(repository)
    return (str(folder), {}) if folder.is_dir() else (repository, {"revision": commit})


def _check_quotes(corpus: CorpusConfig, commit: str, reading: Reading, shards: int) -> None:
    """Checks the quotes in a split's csv or tsv files, because `datasets` may silently read several rows as one cell.

    Raises:
        DataError: rows may be lost in a cell.
    """
    files, mark = _separated_files(str(corpus.dataset), corpus.dataset_config, corpus.dataset_split, commit)
    if len(files) == shards:
        files = [files[reading.start]]
    for file in files if len(files) == 1 or not reading.start else []:
        with storage.broken_files(file), storage.opened(file, formats.format_of(file)[1]) as content:
            raw = lines(content, 0, None, reading.max_bytes)
            delimited.are_enclosing(raw, mark.encode(), reading.max_bytes, file, by_default=True)


@lru_cache(maxsize=4)
def _separated_files(repository: str, configuration: str | None, split: str, commit: str) -> tuple[list[str], str]:
    """Returns a split's csv and tsv files, and their delimiter, if `datasets` takes quotes in them to enclose cells.

    Otherwise, the list is empty.
    """
    place, at = _place(repository, commit)
    builder = _tried(lambda: _library().load_dataset_builder(place, configuration, **at), repository)
    if builder.info.builder_name != "csv" or builder.config.quoting or builder.config.quotechar != '"':
        return [], ""
    files = [str(file) for file in builder.config.data_files[split]]
    return [file for file in files if file.lower().endswith(formats.SUFFIXES)], str(builder.config.sep)


@contextmanager
def _in_words(repository: str, outage_passes: bool = False) -> Iterator[None]:
    """Turns errors of the libraries in the `with` block into errors that name the dataset.

    Args:
        repository: name of the dataset.
        outage_passes: whether errors of the network are passed on, so that the caller can repeat the block.
    """
    try:
        yield
    except AdaptError:
        raise
    except Exception as error:  # catches any error, because the library passes on errors of all formats and stores
        is_outage = _is_outage(error)
        if is_outage and outage_passes:
            raise
        what = f"reading the dataset {repository} failed: {' '.join(str(error).split()) or type(error).__name__}"
        if is_outage:
            raise StorageError(what, "check the network, then run the same command again") from error
        raise DataError(what, _FIX) from error


def _tried(action: Callable[[], T], repository: str) -> T:
    """Runs an action of a library, repeats it after errors of the network, and returns its result."""

    def attempt() -> T:
        with _in_words(repository, outage_passes=True):
            return action()

    return filesystem.retried(attempt, f"the dataset {repository}")


def _is_outage(error: BaseException) -> bool:
    """Returns whether an error means that the network or the Hub failed, so that trying again may help."""
    if isinstance(error, _hub().errors.HfHubHTTPError):
        status = error.response.status_code if error.response is not None else 0
        return status == 429 or status >= 500
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(packages & _NETWORK)

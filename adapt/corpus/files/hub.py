"""Reads datasets with the `datasets` library, streamed shard by shard at one commit of their repository."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from adapt.config import CorpusConfig
from adapt.corpus.files.delimited import are_enclosing
from adapt.corpus.files.filesystem import is_url, retried
from adapt.corpus.files.formats import SUFFIXES, Bad, format_of
from adapt.corpus.files.lines import lines
from adapt.corpus.files.records import TEXT_FIX, Reading, texts
from adapt.corpus.files.storage import broken_files, opened
from adapt.support.errors import AdaptError, ConfigError, DataError, StorageError
from adapt.support.user_path import user_path

_SETTINGS = ("Bad split", "BuilderConfig", "Config name is missing")
"""Beginnings of the messages of the `datasets` library about a wrong configuration or split."""
_NETWORK = {"httpx", "httpcore", "aiohttp"}
"""Packages whose errors are network errors."""
_SCRIPT = "Dataset scripts are no longer supported"
_SAVED = "saved using `save_to_disk`"


def commit_of(corpus: CorpusConfig) -> str:
    """Returns the current commit of a dataset repository's revision.

    Raises:
        DataError: there is no such repository or revision, or no permission to read it.
        StorageError: the Hub does not answer.
    """
    repository, revision, hub = str(corpus.dataset), corpus.dataset_revision, _hub()
    _refuse_files(repository)

    def ask() -> str:
        try:
            return str(hub.HfApi().dataset_info(repository, revision=revision).sha)
        except (
            hub.errors.RepositoryNotFoundError,
            hub.errors.RevisionNotFoundError,
            hub.errors.HFValidationError,
        ) as error:
            at = f" at revision {revision}" if revision else ""
            raise DataError(
                f"there is no dataset {repository}{at}, or you have no permission to read it",
                "check corpus.dataset and corpus.dataset_revision; for a private dataset, set HF_TOKEN to your access"
                " token",
            ) from error
        except hub.errors.HfHubHTTPError as error:
            if _is_outage(error):
                raise
            raise DataError(
                f"the Hub refuses access to the dataset {repository}: {_words(error)}",
                "check corpus.dataset and HF_TOKEN",
            ) from error

    return retried(ask, f"the dataset {repository}")


def _hub() -> Any:
    """Returns the library `huggingface_hub`, which is loaded only for datasets because this takes 0.2 s."""
    import huggingface_hub.errors

    return huggingface_hub


def _refuse_files(repository: str) -> None:
    """Refuses paths and URLs that are neither the name of a repository on the Hub nor a dataset's folder."""
    path = user_path(repository)
    if path.suffix == ".py" and path.is_file():
        raise _script(repository, path.name)
    if path.is_file() or is_url(repository):
        raise DataError(
            f"corpus.dataset: {repository} is {'a URL' if is_url(repository) else 'a file'}, not a dataset",
            f"leave corpus.dataset and corpus.source out, and set corpus.paths: {repository}",
        )
    if repository.startswith(("/", ".", "~")) or repository.count("/") > 1:
        raise DataError(
            f"corpus.dataset: there is no folder {repository}",
            "correct the path, or name a repository of the Hugging Face Hub",
        )


def dataset_shards(corpus: CorpusConfig, commit: str) -> int:
    """Returns the number of shards of a split of a dataset. Each shard can be read separately."""
    return int(_opened(corpus, commit).num_shards)


def read_shard(corpus: CorpusConfig, commit: str, reading: Reading) -> Iterator[str | Bad]:
    """Yields the texts of shard `reading.start`, in order, and a `Bad` reason for each record without text.

    Raises:
        ConfigError: there is no such configuration or split.
        DataError: the dataset cannot be opened or read.
        StorageError: the Hub does not answer.
    """
    records = _opened(corpus, commit)
    count = records.num_shards
    with _in_words(corpus):
        _check_quotes(corpus, commit, reading, count)
    records = records.shard(num_shards=count, index=reading.start)
    with _in_words(corpus):
        yield from texts(iter(records), reading)


def check_dataset(corpus: CorpusConfig, commit: str, name: str, fix: str = TEXT_FIX) -> None:
    """Checks that a split of a dataset has the field `name`.

    Args:
        corpus: settings that name the dataset, its configuration and its split.
        commit: commit of the dataset.
        name: name of the field.
        fix: advice for the message if there is no such field.

    Raises:
        ConfigError: there is no such configuration or split.
        DataError: the dataset cannot be opened, or lacks the field. The message lists its fields.
        StorageError: the Hub does not answer.
    """
    records = _opened(corpus, commit)
    with _in_words(corpus):
        columns = records.column_names or list(next(iter(records), {}))
    if columns and name not in columns:
        fields = ", ".join(map(repr, columns))
        raise DataError(f"the dataset {corpus.dataset} has no field {name!r}; it has {fields}", fix)


def _opened(corpus: CorpusConfig, commit: str) -> Any:
    return _load(str(corpus.dataset), corpus.dataset_config, corpus.dataset_split, commit)


@lru_cache(maxsize=4)  # cached, because a worker reads many shards of one split
def _load(repository: str, configuration: str | None, split: str, commit: str) -> Any:
    place, at = _place(repository, commit)

    def load() -> Any:
        try:
            return _library().load_dataset(place, configuration, split=split, streaming=True, **at)
        except Exception as error:  # catches any error, because the library passes on errors of all formats and stores
            if _is_outage(error):
                raise
            raise _unopened(repository, error) from error

    return retried(load, f"the dataset {repository}")


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
        with broken_files(file), opened(file, format_of(file)[1]) as content:
            raw = lines(content, 0, None, reading.max_bytes)
            are_enclosing(raw, mark.encode(), reading.max_bytes, file, by_default=True)


@lru_cache(maxsize=4)
def _separated_files(repository: str, configuration: str | None, split: str, commit: str) -> tuple[list[str], str]:
    """Returns a split's csv and tsv files, and their delimiter, if `datasets` takes quotes in them to enclose cells.

    Otherwise, the list is empty.
    """
    place, at = _place(repository, commit)
    builder = retried(lambda: _library().load_dataset_builder(place, configuration, **at), f"the dataset {repository}")
    if builder.info.builder_name != "csv" or builder.config.quoting or builder.config.quotechar != '"':
        return [], ""
    files = [str(file) for file in builder.config.data_files[split]]
    return [file for file in files if file.lower().endswith(SUFFIXES)], str(builder.config.sep)


@contextmanager
def _in_words(corpus: CorpusConfig) -> Iterator[None]:
    """Turns errors that the `datasets` library raises in the `with` block into errors that name the dataset."""
    try:
        yield
    except AdaptError:
        raise
    except Exception as error:
        what = f"reading the dataset {corpus.dataset} failed: {_words(error)}"
        if _is_outage(error):
            raise StorageError(what, "check the network, then run the same command again") from error
        raise DataError(
            what,
            "correct or leave out the file at fault; to find the bad record, name the files in corpus.paths, which are"
            " checked record by record",
        ) from error


def _unopened(repository: str, error: Exception) -> AdaptError:
    """Returns the error for a dataset that the library cannot open."""
    said = _words(error)
    if said.startswith(_SCRIPT):
        return _script(repository, said.rpartition(" ")[2])
    what = f"the dataset {repository} cannot be opened: {said}"
    if _SAVED in said:
        return DataError(what, f"leave corpus.dataset and corpus.source out, and set corpus.paths: {repository}")
    if isinstance(error, ValueError) and said.startswith(_SETTINGS):
        return ConfigError(what, "check corpus.dataset_config and corpus.dataset_split")
    return DataError(what, "check corpus.dataset; or name the files that hold its texts in corpus.paths")


def _script(repository: str, name: str) -> DataError:
    return DataError(
        f"the dataset {repository} is a loading script ({name}), and third-party code is not run",
        "many such datasets have a copy without code: set corpus.dataset_revision to refs/convert/parquet; or write the"
        " texts to files and name the files in corpus.paths",
    )


def _is_outage(error: BaseException) -> bool:
    """Returns whether an error means that the network or the Hub failed, so that trying again may help."""
    if isinstance(error, _hub().errors.HfHubHTTPError):
        status = error.response.status_code if error.response is not None else 0
        return status == 429 or status >= 500
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(packages & _NETWORK)


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

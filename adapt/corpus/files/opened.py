"""The bytes of a corpus file, decompressed, and what is wrong with a file in words."""

import csv
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapt.corpus.files.formats import MIB
from adapt.corpus.files.retry import unreadable
from adapt.corpus.files.storage import open_file
from adapt.errors import DataError


@contextmanager
def opened(path: str | Path, compression: str | None, stamp: str = "") -> Iterator[io.BufferedReader]:
    """A file for reading from its beginning; a compressed one cannot be sought in.

    Args:
        path: the file or URL.
        compression: as `adapt.corpus.files.formats.format_of` says.
        stamp: what `adapt.corpus.files.storage.state` said of the file.
    """
    import pyarrow as pa  # its decompressors notice a stream that was cut short, also for zstd

    with open_file(str(path), stamp) as raw:
        if compression is None or not raw.peek(1):
            yield raw
            return
        with (
            lzma.open(raw) if compression == "xz" else pa.input_stream(raw, compression=compression) as whole,
            io.BufferedReader(whole, MIB) as file,
        ):
            yield file


@contextmanager
def broken_files(path: str | Path) -> Iterator[None]:
    """Turns what libraries raise over a file into messages that name it.

    Raises:
        DataError: it is missing, not for us, cut short, or not what its name says.
    """
    import pyarrow as pa

    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise unreadable(str(path), error) from error
    except (OSError, EOFError, csv.Error, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise DataError(
            f"{path} is broken: {' '.join(str(error).split())}",
            "fetch or write the file again, or leave it out of corpus.paths",
        ) from error

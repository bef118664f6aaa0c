"""Measures how fast web pages, PDF and DOCX files are read, compared with the libraries that extract their text.

The documents are made from --data or from Python's language reference: web pages with a menu and a footer, PDF files of
ten pages, and Word documents. `ratio_html` and `ratio_pdf`: documents per second of our reader in one process, divided
by the documents per second of resiliparse and pypdfium2, called directly. Our reader parses each document in a second
process with limits on time and memory, detects encodings, removes headers and footers of pages, and counts unreadable
documents. `ratio_ray`: documents per second when Ray Data reads a folder of all documents on all cores, as stage
`prepare` does, divided by the documents per second of the same libraries in one process. The start of Ray and of
processes is not measured.
"""

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from adapt.config import CorpusConfig
from adapt.corpus.documents.document_kinds import DocumentLimits
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.manifest import build_manifest, numbered_items
from adapt.corpus.files.records import Reading, read_records
from adapt.runner.digest import Digests
from benchmarks.common import Options, Result, main
from benchmarks.dedup import texts_of
from benchmarks.rounds import alternate
from tests.corpus.documents.made_documents import docx, page, pdf

TARGETS = {"ratio_html": (">=", 0.7), "ratio_pdf": (">=", 0.7), "ratio_ray": (">=", 1.0)}
PAGES = 10
"""Number of pages of a PDF file."""
PARAGRAPHS = 40
"""Number of paragraphs of a web page or of a Word document."""


def measure(options: Options) -> Result:
    """Reads the same documents with our code and with the libraries, in alternating rounds."""
    import ray

    number = 60 if options.quick else 300
    with tempfile.TemporaryDirectory() as folder:
        files = made(Path(folder), options.data, number)
        ray.init(include_dashboard=False, log_to_driver=False)
        sides: dict[str, Callable[[], float]] = {
            "ours html": partial(ours, files["html"]),
            "libraries html": partial(libraries, files["html"]),
            "ours pdf": partial(ours, files["pdf"]),
            "libraries pdf": partial(libraries, files["pdf"]),
            "ray": partial(by_ray, folder),
            "libraries": partial(libraries, [*files["html"], *files["pdf"], *files["docx"]]),
        }
        for warm_up in (partial(ours, files["html"][:1]), partial(ours, files["pdf"][:1]), partial(by_ray, folder)):
            warm_up()
        compared = alternate(sides)
        ray.shutdown()
        result = Result({}, [(name, _rate(name, files, compared.middle(name, float))) for name in sides])
    for figure, one, other in (
        ("ratio_html", "libraries html", "ours html"),
        ("ratio_pdf", "libraries pdf", "ours pdf"),
        ("ratio_ray", "libraries", "ray"),
    ):
        result.compare(figure, compared.ratio(one, other, float))
    return result


def _rate(name: str, files: dict[str, list[Path]], seconds: float) -> str:
    read = files.get(name.split()[-1]) or [file for kind in files.values() for file in kind]
    size = sum(file.stat().st_size for file in read)
    return f"{len(read) / seconds:,.0f} documents/s, {size / 1e6 / seconds:.1f} MB/s"


def made(folder: Path, data: Path | None, number: int) -> dict[str, list[Path]]:
    """Writes documents, and returns their files by format. One in ten is a PDF file; these are slow to create."""
    texts = [re.sub("[^ -~]|[<&]", " ", text) for text in texts_of(data, 5000)]
    files: dict[str, list[Path]] = {"html": [], "pdf": [], "docx": []}

    def some(start: int, count: int) -> list[str]:
        return [texts[(start * count + place) % len(texts)] for place in range(count)]

    for place in range(number):
        write(files["html"], folder / f"{place:04d}.html", page(some(place, PARAGRAPHS)).encode())
        write(files["docx"], folder / f"{place:04d}.docx", docx(some(place, PARAGRAPHS)))
    for place in range(number // 10):
        pages = ["\n\n".join(some(place * PAGES + leaf, 12)) for leaf in range(PAGES)]
        write(files["pdf"], folder / f"{place:04d}.pdf", pdf(pages, header="Reference, page"))
    return files


def write(files: list[Path], file: Path, content: bytes) -> None:
    """Writes a file and adds it to a list."""
    file.write_bytes(content)
    files.append(file)


def ours(files: Sequence[Path]) -> float:
    """Reads files with our code in one process, and returns the time [s]."""
    reading = Reading(limits=DocumentLimits())
    began = time.perf_counter()
    for file in files:
        texts = list(read_records(file, reading))
        assert texts
        assert not isinstance(texts[0], Bad), (file, texts)
    return time.perf_counter() - began


def libraries(files: Sequence[Path]) -> float:
    """Reads files with the libraries alone in one process, and returns the time [s].

    Word documents, for which we use no library, are read with ElementTree.
    """
    from xml.etree import ElementTree
    from zipfile import ZipFile

    from pypdfium2 import PdfDocument
    from resiliparse.extract.html2text import extract_plain_text

    began = time.perf_counter()
    for file in files:
        if file.suffix == ".html":
            assert extract_plain_text(file.read_bytes().decode(), main_content=True)
        elif file.suffix == ".pdf":
            with PdfDocument(file.read_bytes()) as document:
                assert [leaf.get_textpage().get_text_bounded() for leaf in document]
        else:
            tree = ElementTree.fromstring(ZipFile(file).read("word/document.xml"))
            assert "".join(tree.itertext())
    return time.perf_counter() - began


def by_ray(folder: str) -> float:
    """Reads a folder with Ray Data on all cores, as stage `prepare` does, and returns the time [s]."""
    import ray
    from ray.data import TaskPoolStrategy

    from adapt.corpus.prepare_corpus import CHUNK_CHARACTERS, WAITING_BYTES, Read
    from adapt.ray.runtime import data_settings

    corpus = CorpusConfig(paths=folder, cleaning=["length"])
    items = numbered_items(build_manifest(corpus, Digests()), corpus)
    began = time.perf_counter()
    with data_settings(WAITING_BYTES, target_max_block_size=1):
        chunks = ray.data.from_items(items).map_batches(
            Read(corpus, CHUNK_CHARACTERS),
            batch_size=1,
            batch_format="numpy",
            num_cpus=1,
            compute=TaskPoolStrategy(size=max(1, int(ray.cluster_resources().get("CPU", 1)))),
        )
        assert sum(len(row["texts"]) for row in chunks.iter_rows())
    return time.perf_counter() - began


if __name__ == "__main__":
    main("documents", TARGETS, measure)

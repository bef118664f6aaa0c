"""Parses documents in a separate program: `python -m adapt.corpus.documents.document_reader`.

The program reads requests from standard input and writes an answer to each request to standard output. Requests and
answers are lines of JSON. A request contains an id, which the answer repeats, and the size of the document. The
document's bytes follow the request line. `adapt.corpus.documents.document_files` starts the program with few
environment variables, so that a document that exploits a library finds no secrets.

The kernel kills the program when a document takes too much time, even if a library is running at that moment.
"""

import json
import os
import resource
import signal
import sys
from typing import Any, BinaryIO

from adapt.corpus.documents import document_kinds
from adapt.corpus.documents.zipped_documents import docx_text, epub_chapters, joined_chapters

WALL_TIME = 10
"""Maximum wall time for a document, as a multiple of its maximum CPU time. The limit stops parsers that wait
forever."""
MEMORY_BYTES = 2 << 30
"""Address space that the program may use in addition to eight times the maximum size of a document [bytes]."""
MEMORY_PER_BYTE = 8


def main() -> None:
    """Answers requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not mix its output with the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ignores ctrl-C: it ends the job, which then ends this program
    for name in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(name, signal.SIG_DFL)
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        answer = {"id": request["id"], **_answer(request, sys.stdin.buffer)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _answer(request: dict[str, Any], source: BinaryIO) -> dict[str, Any]:
    limits = document_kinds.DocumentLimits(**request["limits"])
    data = source.read(request["size"])
    most = MEMORY_BYTES + MEMORY_PER_BYTE * limits.max_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.setitimer(signal.ITIMER_PROF, limits.max_seconds)
    signal.setitimer(signal.ITIMER_REAL, WALL_TIME * limits.max_seconds)
    try:
        return {"texts": read_document(request["kind"], data, limits, request["encoding"])}
    except document_kinds.UnreadableDocumentError as error:
        return {"bad": error.reason, "texts": error.texts}
    except MemoryError:
        return {"bad": document_kinds.TOO_LARGE}
    except RecursionError:
        return {"bad": document_kinds.TOO_DEEP}
    except Exception:  # libraries raise errors of any type for damaged documents
        return {"bad": document_kinds.BROKEN}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def read_document(
    kind: str, data: bytes, limits: document_kinds.DocumentLimits, encoding: str | None = None
) -> list[str]:
    """Returns the texts of a document: a single text, or a text per page or heading.

    Args:
        kind: kind of the document, such as `pdf`; or `plain` for plain text.
        data: content of the document, not compressed.
        limits: limits, and how the document is divided.
        encoding: encoding that a web server named; None if it is not known.

    Raises:
        UnreadableDocumentError: the document or some of its pages have no text that can be read.
    """
    marked = _marked_text(kind, data, limits, encoding)
    texts = document_kinds.divided_text(marked, limits.split)
    if not texts:
        raise document_kinds.UnreadableDocumentError(document_kinds.NO_TEXT)
    if sum(map(len, texts)) > limits.max_bytes:
        raise document_kinds.UnreadableDocumentError(document_kinds.TOO_LARGE)
    if document_kinds.LACKS_PAGES in marked:
        raise document_kinds.UnreadableDocumentError(document_kinds.BROKEN_PAGES, texts)
    return texts


def _marked_text(kind: str, data: bytes, limits: document_kinds.DocumentLimits, encoding: str | None) -> str:
    """Returns the text of a document with marks before pages and headings.

    Each kind of document loads only its own library.
    """
    if kind == "pdf":
        from adapt.corpus.documents.pdf_pages import pdf_text

        return pdf_text(data, limits)
    if kind == "docx":
        return docx_text(data, limits)
    from adapt.corpus.documents.markup_documents import READERS, decoded, main_text

    if kind == "epub":
        return joined_chapters([main_text(decoded(chapter), whole=True) for chapter in epub_chapters(data, limits)])
    text = decoded(data, encoding)
    if kind == "html":
        return main_text(text)
    return document_kinds.unmarked(text) if kind == "plain" else READERS[kind](text)


if __name__ == "__main__":
    main()

"""Creates documents in all formats from public-domain text, including damaged and malicious documents."""

import gzip
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fpdf import FPDF
from fpdf.enums import AccessPermission, EncryptionMethod

# Charles Darwin, On the Origin of Species (1859); Jane Austen, Pride and Prejudice (1813): in the public domain.
DARWIN = (
    "When we look to the individuals of the same variety or sub-variety of our older cultivated plants and animals, one"
    " of the first points which strikes us, is, that they generally differ much more from each other, than do the"
    " individuals of any one species or variety in a state of nature."
)
SELECTION = (
    "Owing to this struggle for life, any variation, however slight and from whatever cause proceeding, if it be in any"
    " degree profitable to an individual of any species, will tend to the preservation of that individual, and will"
    " generally be inherited by its offspring."
)
AUSTEN = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a"
    " wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this"
    " truth is so well fixed in the minds of the surrounding families."
)
PARAGRAPHS = (DARWIN, SELECTION, AUSTEN)


def pdf(pages: Sequence[str], password: str | None = None, header: str = "") -> bytes:
    """Returns a PDF file with a text on each page."""
    document = FPDF()
    document.set_font("Helvetica", size=11)
    if password:
        document.set_encryption("owner", password, EncryptionMethod.RC4, AccessPermission.none())
    for number, text in enumerate(pages, start=1):
        document.add_page()
        if header:
            document.cell(text=f"{header} {number}", new_x="LMARGIN", new_y="NEXT")
        document.multi_cell(0, text=text)
    return bytes(document.output())


def pdf_with_broken_page() -> bytes:
    """Returns a PDF file of three pages. The second page cannot be loaded."""
    first, second, others = pdf(PARAGRAPHS).split(b"/Type /Page\n", 2)
    return first + b"/Type /Page\n" + second + b"/Type /Xage\n" + others


def scanned_pdf() -> bytes:
    """Returns a PDF file with a drawing and no text, like a scan."""
    document = FPDF()
    document.add_page()
    document.rect(20, 20, 100, 100, "F")
    return bytes(document.output())


def page(paragraphs: Sequence[str], title: str = "A book", charset: str = "utf-8") -> str:
    """Returns a web page with navigation and a footer around an article with a heading for each paragraph."""
    links = "".join(f'<li><a href="/{name}">{name}</a></li>' for name in ("Home", "Shop", "Login", "Imprint"))
    body = "".join(f"<h2>Chapter {number}</h2><p>{text}</p>" for number, text in enumerate(paragraphs, start=1))
    return (
        f'<!DOCTYPE html><html><head><meta charset="{charset}"><title>{title}</title>'
        "<script>var tracking = 'a script';</script></head>"
        f'<body><nav id="menu"><ul>{links}</ul></nav><main><article><h1>{title}</h1>{body}</article></main>'
        '<footer class="footer">Copyright of the shop</footer></body></html>'
    )


WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STYLES = (
    f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/>'
    "</w:style></w:styles>"
)


def docx(paragraphs: Sequence[str], headings: bool = False, body: str = "") -> bytes:
    """Returns a Word document. With `headings`, each paragraph has a heading whose style has a German name."""
    parts = []
    for number, text in enumerate(paragraphs, start=1):
        if headings:
            style = '<w:pPr><w:pStyle w:val="berschrift1"/></w:pPr>'
            parts.append(f"<w:p>{style}<w:r><w:t>Chapter {number}</w:t></w:r></w:p>")
        parts.append(f"<w:p><w:r><w:t>{text[:20]}</w:t></w:r><w:r><w:t>{text[20:]}</w:t></w:r></w:p>")
    document = f'<w:document xmlns:w="{WORD}"><w:body>{"".join(parts)}{body}</w:body></w:document>'
    return zipped({"[Content_Types].xml": "<Types/>", "word/document.xml": document, "word/styles.xml": STYLES})


def epub(chapters: Sequence[str], encryption: str = "", headings: bool = True) -> bytes:
    """Returns an EPUB book with a chapter for each text. Its files are not in reading order."""
    names = [f"c{number}.xhtml" for number in range(len(chapters))]
    items = "".join(
        f'<item id="{name}" href="text/{name}" media-type="application/xhtml+xml"/>' for name in names[::-1]
    )
    spine = "".join(f'<itemref idref="{name}"/>' for name in names)
    opf = f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{spine}</spine></package>'
    files = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfile full-path="book/content.opf"/></container>',
        "book/content.opf": opf,
        **{
            f"book/text/{name}": "<html><body>" + f"<h1>Part {number}</h1>" * headings + f"<p>{text}</p></body></html>"
            for number, (name, text) in enumerate(zip(names, chapters, strict=True), start=1)
        },
    }
    if encryption:
        method = f'<EncryptionMethod Algorithm="{encryption}"/>'
        files["META-INF/encryption.xml"] = f"<encryption><EncryptedData>{method}</EncryptedData></encryption>"
    return zipped(files)


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """Returns a zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def warc(records: Sequence[tuple[str, str, bytes]]) -> bytes:
    """Returns a web archive with one HTTP response per record. A record is (status, media type, content)."""
    out = []
    for number, (status, media_type, content) in enumerate(records):
        head = f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        block = head + content
        warc_head = (
            "WARC/1.0\r\nWARC-Type: response\r\nWARC-Date: 2024-01-01T00:00:00Z\r\n"
            f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\n"
            f"WARC-Target-URI: http://host/{number}\r\nContent-Type: application/http; msgtype=response\r\n"
            f"Content-Length: {len(block)}\r\n\r\n"
        )
        out.append(gzip.compress(warc_head.encode() + block + b"\r\n\r\n"))
    return b"".join(out)


def write(folder: Path, files: dict[str, bytes | str]) -> Path:
    """Writes files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder

"""Divides the text of a document at pages or headings.

Readers put a mark before each page and before each heading. The marks are characters for private use, which readers
remove from the document first.
"""

PAGE, HEADING = "\ue000", "\ue001"
"""Marks that readers put before a page and before a heading."""
LACKS_PAGES = "\ue002"
"""Mark that readers put into the text of a document with pages that cannot be read."""
_LINE_ENDS = ("\r\n", "\r", "\u2028", "\u2029")


def unmarked(text: str) -> str:
    """Removes the characters that serve as marks from the text of a document."""
    return text.replace(PAGE, "").replace(HEADING, "").replace(LACKS_PAGES, "")


def tidy(text: str) -> str:
    """Removes marks, trailing spaces, and repeated blank lines. All line ends become newlines."""
    text = unmarked(text)
    for end in _LINE_ENDS:
        text = text.replace(end, "\n")  # many times as fast as a regular expression
    text = "\n".join(map(str.rstrip, text.split("\n")))
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.strip()


def divided_text(text: str, split: str) -> list[str]:
    """Divides the marked text of a document.

    Args:
        text: text of the document, with marks before pages and headings.
        split: `file` for the whole text, `page` or `heading`. A document without such marks stays whole. A heading
            without text before the next heading is put before that heading.

    Returns:
        The parts that have text, without marks.
    """
    if split == "page":
        parts = text.split(PAGE)
    elif split == "heading":
        parts = text.split(HEADING)
    else:
        parts = [text]
    found: list[str] = []
    waiting: list[str] = []
    for number, part in enumerate(parts):
        if not (clean := tidy(part)):
            continue
        is_bare = split == "heading" and number > 0 and "\n" not in clean
        if is_bare and number < len(parts) - 1:
            waiting.append(clean)
        else:
            found.append("\n\n".join([*waiting, clean]))
            waiting = []
    return [*found, *(["\n\n".join(waiting)] if waiting else [])]

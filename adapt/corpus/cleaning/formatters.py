"""Cleaning blocks that change documents: `fix_unicode`, `boilerplate` and `pii`.

Each option of a block is a field. The annotation of the field sets the option's type and range, which users see in the
list of options.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import ftfy

from adapt.corpus.cleaning.cleaning_blocks import Block, Drop, Edit, count_change, edited


@dataclass(frozen=True)
class FixUnicode(Block):
    """Repairs wrongly decoded characters ("Ã©" for "é"), HTML entities, ligatures and the like with ftfy (Speer 2019).

    HTML entities are decoded only in texts without HTML tags, which is ftfy's default.
    """

    name: ClassVar[str] = "fix_unicode"
    packages: ClassVar[tuple[str, ...]] = ("ftfy",)
    keeps_entities: ClassVar[bool] = False
    earlier: ClassVar[Mapping[str, Any]] = {"uncurl_quotes": False}

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the repaired text."""
        fixed = ftfy.fix_text(text, uncurl_quotes=False)
        count_change(changes, self.name, fixed != text)
        return fixed


_NOTICE = re.compile(
    r"""\b(?:
    (?:we|site|website|page) \s+ uses? \s+ (?:\w+ \s+)? cookies
    | (?:accept|cookie) \s+ (?:all|policy|settings|preferences)
    | all \s+ rights \s+ reserved | copyright \s+ (?:\(c\)|©|\d{4})
    | terms \s+ (?:of \s+ (?:use|service)|and \s+ conditions)
    | privacy \s+ (?:policy|statement|notice) | javascript \s+ (?:is \s+)? (?:disabled|required|enabled)
    | enable \s+ javascript | share \s+ (?:this|on) \b (?=.{0,30}$) | (?:follow|like|find) \s+ us \s+ on
    | (?:sign \s+ up|subscribe) \s+ (?:for|to) \s+ (?:our|the|this) | (?:click|tap) \s+ here
    | (?:log|sign) \s+ in \s+ (?:to|or) | (?:read|view|load) \s+ more $ | skip \s+ to \s+ (?:main \s+)? content
    | back \s+ to \s+ top | leave \s+ a \s+ (?:comment|reply) | powered \s+ by \s+ \w+ $
    ) | ©""",
    re.IGNORECASE | re.VERBOSE,
)

LONGEST_LINE, MOST_REPEATS = 20, 2
"""Length of the longest line that `boilerplate` removes [words], and number of occurrences of a line that it keeps."""


@dataclass(frozen=True)
class Boilerplate(Block):
    """Removes short lines that occur more than twice or are English web page notices (cookies, copyright, sharing, …).

    Longer lines are never removed, because they may be text about cookies, copyright and the like.
    """

    name: ClassVar[str] = "boilerplate"
    earlier: ClassVar[Mapping[str, Any]] = {"max_words": LONGEST_LINE, "max_repeats": MOST_REPEATS}

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the text without notices and without the occurrences of a short line beyond the second."""
        seen: dict[str, int] = {}
        edits = []
        for start, line in _lines(text):
            content = line.strip()
            if not content or len(content.split()) > LONGEST_LINE:
                continue
            seen[content] = seen.get(content, 0) + 1
            if notice := _NOTICE.search(content):
                count_change(changes, "boilerplate notices")
            elif seen[content] > MOST_REPEATS:
                count_change(changes, "boilerplate repeats")
            if notice or seen[content] > MOST_REPEATS:
                edits.append(Edit(start, start + len(line)))
        return edited(text, edits) if edits else text


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the position of each line in the text [characters] and the line, including its newline."""
    start = 0
    for line in text.splitlines(keepends=True):
        yield start, line
        start += len(line)


@dataclass(frozen=True)
class Pii(Block):
    """Replaces e-mail addresses, phone numbers, identity numbers and IP addresses with placeholders.

    Numbers are recognised by their form. A number with check digits is masked only if the check digits are right. The
    block is a safeguard, not a guarantee: names and postal addresses are not masked.
    """

    name: ClassVar[str] = "pii"
    emails: bool = True
    """Whether e-mail addresses are masked as <EMAIL>."""
    phones: bool = True
    """Whether phone numbers are masked as <PHONE>: a plus sign with 8 to 15 digits, or a North American number of ten
    digits with separators."""
    ids: bool = True
    """Whether US social security numbers are masked as <SSN>, bank accounts as <IBAN> and payment cards as <CARD>."""
    addresses: bool = True
    """Whether public IPv4 and IPv6 addresses are masked as <IP>."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the text with placeholders in place of the masked data."""
        edits: list[Edit] = []
        masked = bytearray(len(text))
        for kind, edit in _found(text, self):
            if not any(masked[edit.start : edit.end]):
                masked[edit.start : edit.end] = b"\1" * (edit.end - edit.start)
                edits.append(edit)
                count_change(changes, f"pii {kind}")
        return edited(text, sorted(edits, key=lambda edit: edit.start)) if edits else text


def _found(text: str, options: Pii) -> Iterator[tuple[str, Edit]]:
    """Yields, for each match, the kind of personal data and the edit that masks it, in the order of `_kinds`."""
    for kind, option, pattern, holds in _kinds():
        if getattr(options, option):
            for match in pattern.finditer(text):
                if holds(match[0]):
                    yield kind, Edit(match.start(), match.end(), f"<{kind.upper()}>")


def is_iban(value: str) -> bool:
    """Returns whether the check digits of an International Bank Account Number are right (ISO 13616: 1 modulo 97)."""
    compact = re.sub(r"\s", "", value)
    return 15 <= len(compact) <= 34 and int("".join(str(int(c, 36)) for c in compact[4:] + compact[:4])) % 97 == 1


def is_card(value: str) -> bool:
    """Returns whether a number can be a payment card: 13 to 19 digits, not all equal, and a right Luhn check digit."""
    digits = [int(c) for c in value if c.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def is_public_address(value: str) -> bool:
    """Returns whether a string is a public IP address, and not a private or reserved one."""
    try:
        return ipaddress.ip_address(value).is_global
    except ValueError:
        return False


def _always(_: str) -> bool:
    return True


@cache  # the patterns are compiled at the first use, so that jobs without this block spend no time on them
def _kinds() -> list[tuple[str, str, re.Pattern[str], Callable[[str], bool]]]:
    """Returns the kinds of data that can be masked. The kind that is recognised most reliably comes first.

    Each kind is a tuple: its name, the name of the option that enables it, the pattern, and a function that decides
    whether a match of the pattern is masked.
    """
    return [
        (
            "email",
            "emails",
            re.compile(r"[\w.+-]{1,64}@(?:[a-z0-9](?:[a-z0-9-]{0,62})\.){1,8}[a-z]{2,24}\b", re.I),
            _always,
        ),
        ("iban", "ids", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), is_iban),
        ("card", "ids", re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)"), is_card),
        ("ssn", "ids", re.compile(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\w-])"), _always),
        ("ip", "addresses", re.compile(r"(?<![\w.:])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]\d|\w)"), is_public_address),
        (
            "ip",
            "addresses",
            re.compile(r"(?<![\w:.])[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])", re.I),
            is_public_address,
        ),
        (
            "phone",
            "phones",
            re.compile(r"(?<![\w+])\+[1-9]\d{0,2}(?:[ .-]?\(?\d{1,4}\)?){2,6}(?!\w)"),
            _phone,
        ),
        (
            "phone",
            "phones",
            re.compile(r"(?<![\w+.-])(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4}(?![\w-]|\.\d)"),
            _always,
        ),
    ]


def _phone(value: str) -> bool:
    return 8 <= sum(character.isdigit() for character in value) <= 15  # E.164 allows at most 15 digits

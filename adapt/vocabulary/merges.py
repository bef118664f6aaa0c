"""New merges of a BPE model, each of which leads on the way from the old pieces of a word to one token."""

from collections.abc import Container, Iterable, Sequence


def new_merges(words: Iterable[Sequence[str]], known: Container[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Merges from left to right: `hep at itis` takes (hep, at) and then (hepat, itis).

    They come after all old merges, so a text first falls into its old pieces, and is left at that where no new merge
    applies. What stands on the way (`hepat`) becomes a token too, shared by all words that begin so. A word on whose
    way there is an old token is left out: a merge to that would change texts without a new word.

    Args:
        words: each as its old pieces, at least two.
        known: old tokens.

    Returns:
        The merges in their order, and the words that are left out.
    """
    merges: dict[tuple[str, str], None] = {}
    left_out = []
    for pieces in words:
        prefix, steps = pieces[0], []
        for piece in pieces[1:]:
            steps.append((prefix, piece))
            prefix += piece
        if any(left + right in known for left, right in steps):
            left_out.append(prefix)
        else:
            merges.update(dict.fromkeys(steps))
    return list(merges), left_out

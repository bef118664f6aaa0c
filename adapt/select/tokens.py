"""How many tokens texts have, as they would be trained on."""

from collections.abc import Sequence

from adapt.model.locate import Pretrained


class TokenCounter:
    """Counts tokens, the special tokens of each text included.

    Args:
        pretrained: has the tokenizer.
        ends: whether documents end with the end-of-text token.
    """

    def __init__(self, pretrained: Pretrained, ends: bool) -> None:
        from adapt.model.literal import load_text_tokenizer
        from adapt.model.tokenize.quick import QuickTokenizer

        tokenizer = load_text_tokenizer(pretrained)
        self._quick = QuickTokenizer(tokenizer.backend_tokenizer)
        self._end = tokenizer.eos_token_id if ends else None

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text."""
        from adapt.model.tokenize.ragged import IDS

        found = self._quick(texts).lists(IDS)
        return [len(ids) + (self._end is not None and ids[-1:].tolist() != [self._end]) for ids in found]

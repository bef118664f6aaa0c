"""Makes the texts of a block: with a decoder, with an encoder, or by rewriting documents.

A maker is sent to the actors of the cluster, loads its model there once, and makes one block after another. The texts
of a block depend only on the block.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from adapt.config import GenerateConfig, SynthesizeConfig
from adapt.corpus.heldout import keys_of
from adapt.generate.decoder import Decoder
from adapt.generate.rewriting import Format, formats_of
from adapt.generate.sampling import DrawSettings, GibbsSampler, Request
from adapt.model.locate import Pretrained


@dataclass(frozen=True)
class MadeText:
    """A text that a model has made."""

    text: str
    tokens: int
    """Number of generated tokens. The prompt for rewriting a document is not counted."""
    is_cut: bool
    """Whether the text ended because it reached its maximum length."""
    details: Mapping[str, Any]
    """Further fields of the JSON line that stores the text, such as the temperature."""


class Maker(ABC):
    """Makes the texts of blocks. `load` is called once in each process, before the first block."""

    batch_field: ClassVar[str] = "generate.micro_batch"
    """Configuration field with the number of texts that are made at the same time."""

    @abstractmethod
    def load(self) -> None:
        """Loads the model, on the GPU that this process may use, or else on the CPU."""

    @abstractmethod
    def make(self, block: Mapping[str, Any]) -> list[MadeText]:
        """Makes the texts of a block.

        Args:
            block: number of its first text and number of texts, as `first` and `count`; or the `ids` and `texts` of the
                documents to rewrite.
        """


class FromDecoder(Maker):
    """Generates texts that begin with the start token or with a prompt. Successive texts use successive prompts.

    Args:
        pretrained: the decoder.
        drawing: how tokens are drawn.
        prompts: texts whose first tokens are used as prompts. If empty, every prompt is only the start token.
        most: maximum number of tokens of a prompt.
    """

    def __init__(self, pretrained: Pretrained, drawing: DrawSettings, prompts: Sequence[str], most: int) -> None:
        self._pretrained, self._drawing = pretrained, drawing
        self._prompts, self._most = prompts, min(most, drawing.max_length - 1)

    def load(self) -> None:
        """Loads the decoder and tokenizes the prompts."""
        self._decoder = Decoder(self._pretrained)
        tokenizer = self._decoder.tokenizer
        encoded = (tokenizer.encode(text, add_special_tokens=False) for text in self._prompts)
        self._starts = [tokens[: self._most] for tokens in encoded] or [[]]

    def make(self, block: Mapping[str, Any]) -> list[MadeText]:
        """Generates the texts of a block with the decoder."""
        drawing, decoder = self._drawing, self._decoder
        numbers = range(block["first"], block["first"] + block["count"])
        starts = [self._starts[number // len(drawing.temperatures) % len(self._starts)] for number in numbers]
        requests = [
            Request(
                number,
                [decoder.start, *start],
                drawing.temperature(number),
                max(drawing.min_length - len(start), 1),
                drawing.max_length - len(start),
            )
            for number, start in zip(numbers, starts, strict=True)
        ]
        found = decoder.generate(requests, drawing.seed, drawing.top_p, drawing.micro_batch)
        return [
            MadeText(
                decoder.text_of([*start, *tokens]),
                len(tokens),
                len(tokens) == request.most,
                {"temperature": request.temperature},
            )
            for request, start, tokens in zip(requests, starts, found, strict=True)
        ]


class FromEncoder(Maker):
    """Samples texts from an encoder (`adapt.generate.sampling`).

    Args:
        pretrained: the encoder.
        drawing: how tokens are drawn.
        sweeps: number of times that the token at each position is drawn.
        share: share of the positions that are drawn together.
    """

    def __init__(self, pretrained: Pretrained, drawing: DrawSettings, sweeps: int, share: float) -> None:
        self._pretrained, self._drawing, self._sweeps, self._share = pretrained, drawing, sweeps, share

    def load(self) -> None:
        """Loads the encoder."""
        self._sampler = GibbsSampler(self._pretrained, self._drawing, self._sweeps, self._share)

    def make(self, block: Mapping[str, Any]) -> list[MadeText]:
        """Samples the texts of a block from the encoder."""
        numbers = range(block["first"], block["first"] + block["count"])
        return [
            MadeText(
                str(self._sampler.tokenizer.decode(tokens, skip_special_tokens=True)),
                len(tokens),
                False,
                {"temperature": self._drawing.temperature(number)},
            )
            for number, tokens in zip(numbers, self._sampler.sample(numbers), strict=True)
        ]


_MOST_FORMATS = 1 << 8
"""Maximum number of formats. The number of a rewritten text is the number of its document times this maximum, plus the
index of its format."""


class Rewriting(Maker):
    """Rewrites documents in the configured formats. The generator's chat template is used if it has one.

    Args:
        pretrained: the generator, a decoder.
        drawing: how tokens are drawn.
        formats: the formats.
        document_tokens: longer documents are truncated to this number of tokens.
    """

    batch_field = "synthesize.micro_batch"

    def __init__(
        self, pretrained: Pretrained, drawing: DrawSettings, formats: Sequence[Format], document_tokens: int
    ) -> None:
        self._pretrained, self._drawing = pretrained, drawing
        self._formats, self._document_tokens = formats, document_tokens

    def load(self) -> None:
        """Loads the generator."""
        self._decoder = Decoder(self._pretrained)

    def make(self, block: Mapping[str, Any]) -> list[MadeText]:
        """Rewrites each document of a block in every format.

        The field `source` of a text is the key of the document.
        """
        drawing, decoder = self._drawing, self._decoder
        asked = [
            (number * _MOST_FORMATS + place, text, each)
            for number, text in zip(block["ids"], block["texts"], strict=True)
            for place, each in enumerate(self._formats)
        ]
        requests = [
            Request(
                number,
                self._prompt(text, each),
                # temperatures vary by document and by format
                drawing.temperature(number // _MOST_FORMATS + number % _MOST_FORMATS),
                drawing.min_length,
                drawing.max_length,
            )
            for number, text, each in asked
        ]
        found = decoder.generate(requests, drawing.seed, drawing.top_p, drawing.micro_batch)
        sources = dict(zip(block["ids"], keys_of(block["texts"]).tolist(), strict=True))
        made = []
        for (number, text, each), tokens in zip(asked, found, strict=True):
            written = decoder.text_of(tokens).strip()
            details = {"format": each.name, "source": str(sources[number // _MOST_FORMATS])}
            is_cut = len(tokens) == drawing.max_length
            if each.pairs:  # the query is only the first line, because generators may write more lines
                made.append(MadeText(first_line(written), len(tokens), is_cut, {**details, "positive": text}))
            else:
                made.append(MadeText(written, len(tokens), is_cut, details))
        return made

    def _prompt(self, document: str, wanted: Format) -> list[int]:
        tokenizer = self._decoder.tokenizer
        shortened = shortened_text(tokenizer, document, self._document_tokens)
        return prompt_tokens(tokenizer, wanted.prompt(shortened), self._decoder.start)


def maker_of(
    way: Literal["decoder", "gibbs"], pretrained: Pretrained, section: GenerateConfig, prompts: Sequence[str]
) -> Maker:
    """Returns the maker that section `generate` configures.

    Args:
        way: whether the model is a decoder, or an encoder to sample from.
        pretrained: the model.
        section: the configuration's section `generate`.
        prompts: texts whose first tokens are a decoder's prompts. If empty, every prompt is only the start token.
    """
    drawing = DrawSettings.of(section)
    if way == "decoder":
        return FromDecoder(pretrained, drawing, prompts, section.prompt_tokens)
    return FromEncoder(pretrained, drawing, section.sweeps, section.masked_fraction)


def rewriter_of(generator: Pretrained, section: SynthesizeConfig) -> Rewriting:
    """Returns the maker that section `synthesize` configures."""
    return Rewriting(generator, DrawSettings.of(section), formats_of(section), section.document_tokens)


def shortened_text(tokenizer: Any, text: str, most: int) -> str:
    """Returns the beginning of a text that has at most `most` tokens, cut at the end of a token.

    Special tokens in the text are replaced by spaces, so that a document cannot end the chat message that contains it.
    """
    for token in tokenizer.all_special_tokens:
        text = text.replace(token, " ") if len(token) > 1 else text
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if len(encoded["input_ids"]) <= most:
        return text
    return text[: encoded["offset_mapping"][most - 1][1]]


def prompt_tokens(tokenizer: Any, prompt: str, start: int) -> list[int]:
    """Returns the tokens of a prompt: as a user's message if there is a chat template, else after the start token."""
    if not tokenizer.chat_template:
        return [start, *tokenizer.encode(prompt, add_special_tokens=False)]
    message = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))


def first_line(text: str) -> str:
    """Returns the first line of a text. Models that write a query may add more lines after it."""
    return next(iter(text.strip().splitlines()), "").strip()

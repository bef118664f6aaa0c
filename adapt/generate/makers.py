"""Makes the texts of a block: with a decoder, with an encoder, or by rewriting documents.

A maker is sent to the actors of the cluster, loads its model there once, and makes one block after another. The texts
of a block depend only on the block.

Wang and Cho (2019, arXiv 1902.04094) read a masked language model as a Markov random field and sample from it by Gibbs
sampling: a text begins with mask tokens, and in each step a random position is masked and its token is drawn from the
model's distribution given all other tokens. Here, a sweep draws every position once, in a random order, and a share of
the positions is masked and drawn together. If the share is a single position, this is the sampler of Wang and Cho,
except that positions are drawn without replacement.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adapt.config import GenerateConfig, SynthesizeConfig
from adapt.corpus.heldout import keys_of
from adapt.generate import rewriting, sampling
from adapt.generate.decoder import Decoder
from adapt.model import locate, sparse_prediction
from adapt.model.load import load_model
from adapt.model.packing.packed import Packed, sent
from adapt.model.tokenizer import load_tokenizer, sees_both_sides
from adapt.support.errors import ModelError

MASKED_FRACTION: float = GenerateConfig.earlier["masked_fraction"]
"""`gibbs`: share of a text's positions that are masked and resampled together. A smaller share is closer to Gibbs
sampling, and takes more passes of the model."""


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

    The first tokens of `prompts` are the prompts. If it is empty, every prompt is only the start token.
    """

    def __init__(self, pretrained: locate.Pretrained, section: GenerateConfig, prompts: Sequence[str]) -> None:
        self._pretrained, self._section, self._prompts = pretrained, section, prompts

    def load(self) -> None:
        """Loads the decoder and tokenizes the prompts."""
        self._decoder = Decoder(self._pretrained)
        tokenizer = self._decoder.tokenizer
        encoded = (tokenizer.encode(text, add_special_tokens=False) for text in self._prompts)
        most = min(self._section.prompt_tokens, self._section.max_length - 1)
        self._starts = [tokens[:most] for tokens in encoded] or [[]]

    def make(self, block: Mapping[str, Any]) -> list[MadeText]:
        """Generates the texts of a block with the decoder."""
        section, decoder = self._section, self._decoder
        numbers = range(block["first"], block["first"] + block["count"])
        starts = [self._starts[number // len(section.temperatures) % len(self._starts)] for number in numbers]
        requests = [
            sampling.Request(
                number,
                [decoder.start, *start],
                temperature_of(section, number),
                max(section.min_length - len(start), 1),
                section.max_length - len(start),
            )
            for number, start in zip(numbers, starts, strict=True)
        ]
        found = decoder.generate(requests, section.seed, section.top_p, section.micro_batch)
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
    """Samples texts from an encoder.

    Raises:
        ModelError: the model is not an encoder, or cannot be loaded. `load` raises this error.
    """

    def __init__(self, pretrained: locate.Pretrained, section: GenerateConfig) -> None:
        self._pretrained, self._section = pretrained, section

    def load(self) -> None:
        """Loads the encoder."""
        pretrained = self._pretrained
        self._model: Any = load_model(pretrained.model, trust_remote_code=pretrained.trust_remote_code)
        if sees_both_sides(self._model.config):
            raise ModelError(
                f"{pretrained.model} is a decoder that was converted to an encoder, which mixture.replay_kind gibbs"
                " does not support",
                "set mixture.replay_kind to decoder, and generate.generator to the original decoder",
            )
        self._tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.nn.Module.to(self._model, self._device)
        self._never = sampling.never_drawn(self._tokenizer, int(self._model.config.vocab_size), ()).to(self._device)
        empty = self._tokenizer("").input_ids
        self._before, self._after = empty[: len(empty) // 2], empty[len(empty) // 2 :]

    def make(self, block: Mapping[str, Any]) -> list[MadeText]:
        """Samples the texts of a block from the encoder."""
        numbers = range(block["first"], block["first"] + block["count"])
        return [
            MadeText(
                str(self._tokenizer.decode(tokens, skip_special_tokens=True)),
                len(tokens),
                False,
                {"temperature": temperature_of(self._section, number)},
            )
            for number, tokens in zip(numbers, self.sample(numbers), strict=True)
        ]

    def sample(self, numbers: Sequence[int]) -> list[list[int]]:
        """Samples texts, and returns the tokens of each, without special tokens.

        The number of a text determines its length, temperature and random numbers.
        """
        section = self._section
        every = np.array(numbers, np.uint64)
        shares = sampling.uniforms(section.seed, every, np.full(len(every), sampling.LENGTH, np.uint64))
        lengths = section.min_length + (shares * (section.max_length - section.min_length + 1)).astype(np.int64)
        by_length = np.argsort(lengths, kind="stable")
        found: list[list[int]] = [[] for _ in numbers]
        for start in range(0, len(by_length), section.micro_batch):
            places = by_length[start : start + section.micro_batch]
            for place, tokens in zip(places, self._together(every[places], lengths[places]), strict=True):
                found[place] = tokens.tolist()
        return found

    @torch.inference_mode()
    def _together(self, numbers: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        """Samples a batch of texts of about the same length."""
        section = self._section
        tokens = [np.full(length, self._tokenizer.mask_token_id, np.int64) for length in lengths]
        heat = np.array([temperature_of(section, int(number)) for number in numbers])
        for sweep in range(section.sweeps):
            orders = [sampling.sweep_order(section.seed, *text, sweep) for text in zip(numbers, lengths, strict=True)]
            for part in range(ceil(1 / MASKED_FRACTION)):
                chosen = [sampling.part_of_order(order, part, MASKED_FRACTION) for order in orders]
                if not any(map(len, chosen)):
                    continue
                scores = self._scores(tokens, chosen)
                owners = np.repeat(np.arange(len(tokens)), list(map(len, chosen)))
                positions = np.concatenate(chosen)
                steps = (sampling.TOKEN + sweep * section.max_length + positions).astype(np.uint64)
                draws = torch.from_numpy(sampling.uniforms(section.seed, numbers[owners], steps)).to(self._device)
                hot = torch.from_numpy(heat[owners]).float().to(self._device)
                drawn = sampling.draw_tokens(scores, hot, section.top_p, draws).cpu().numpy()
                ends = np.cumsum(list(map(len, chosen)))[:-1]
                for of, places, new in zip(tokens, chosen, np.split(drawn, ends), strict=True):
                    of[places] = new
        return tokens

    def _scores(self, tokens: Sequence[np.ndarray], chosen: Sequence[np.ndarray]) -> Tensor:
        """Masks the chosen positions, and returns the model's scores there, [positions, V]."""
        documents, places, start = [], [], 0
        for of, positions in zip(tokens, chosen, strict=True):
            masked = of.copy()
            masked[positions] = self._tokenizer.mask_token_id
            documents.append(Packed.single(torch.tensor([*self._before, *masked.tolist(), *self._after])))
            places.append(np.sort(positions) + start + len(self._before))
            start += len(self._before) + len(of) + len(self._after)
        packed = Packed.joined(*documents).to(self._device)
        at = sent(torch.from_numpy(np.concatenate(places)), self._device)
        scores = sparse_prediction.predict_at(self._model, packed, at).float()
        return scores.masked_fill(self._never, -torch.inf)


REASONING, ANSWER = "<think>", "</think>"
"""Marks that begin and end the reasoning in the output of a thinking model. The first mark may be in the prompt."""
PROMPT_END = 8
"""Number of tokens at the end of a prompt in which `REASONING` is searched for."""
DROPPED = "dropped"
"""Field of a text's JSON line with the reason why the stage `filter` must drop the text."""
_MOST_FORMATS = 1 << 8
"""Maximum number of formats. The number of a rewritten text is the number of its document times this maximum, plus the
index of its format."""


class Rewriting(Maker):
    """Rewrites documents in the configured formats. The generator's chat template is used if it has one.

    Raises:
        ConfigError: the formats are wrong; see `adapt.generate.rewriting.formats_of`.
    """

    batch_field = "synthesize.micro_batch"

    def __init__(self, generator: locate.Pretrained, section: SynthesizeConfig) -> None:
        self._pretrained, self._section, self._formats = generator, section, rewriting.formats_of(section)

    def load(self) -> None:
        """Loads the generator."""
        self._decoder = Decoder(self._pretrained)

    def make(self, block: Mapping[str, Any]) -> list[MadeText]:
        """Rewrites each document of a block in every format.

        The field `source` of a text is the key of the document.
        """
        section, decoder = self._section, self._decoder
        asked = [
            (number * _MOST_FORMATS + place, text, each)
            for number, text in zip(block["ids"], block["texts"], strict=True)
            for place, each in enumerate(self._formats)
        ]
        requests = [
            sampling.Request(
                number,
                self._prompt(text, each),
                # temperatures vary by document and by format
                temperature_of(section, number // _MOST_FORMATS + number % _MOST_FORMATS),
                section.min_length,
                section.max_length,
            )
            for number, text, each in asked
        ]
        found = decoder.generate(requests, section.seed, section.top_p, section.micro_batch)
        sources = dict(zip(block["ids"], keys_of(block["texts"]).tolist(), strict=True))
        made = []
        for (number, text, each), request, tokens in zip(asked, requests, found, strict=True):
            # some chat templates end with the mark that begins the reasoning
            begins = decoder.text_of(request.prompt[-PROMPT_END:]).rstrip().endswith(REASONING)
            written = without_reasoning((REASONING if begins else "") + decoder.text_of(tokens))
            details = {"format": each.name, "source": str(sources[number // _MOST_FORMATS])}
            is_cut = len(tokens) == section.max_length
            if written is None:  # the stage `filter` drops and counts this text
                written, details = "", {**details, DROPPED: "unfinished reasoning"}
            if each.pairs:  # the query is only the first line, because generators may write more lines
                made.append(MadeText(first_line(written), len(tokens), is_cut, {**details, "positive": text}))
            else:
                made.append(MadeText(written, len(tokens), is_cut, details))
        return made

    def _prompt(self, document: str, wanted: rewriting.Format) -> list[int]:
        tokenizer = self._decoder.tokenizer
        shortened = shortened_text(tokenizer, document, self._section.document_tokens)
        return prompt_tokens(tokenizer, wanted.prompt(shortened), self._decoder.start)


def temperature_of(section: GenerateConfig | SynthesizeConfig, number: int) -> float:
    """Returns the temperature of a text. Successive texts use successive temperatures of the configured list."""
    return section.temperatures[number % len(section.temperatures)]


def shortened_text(tokenizer: Any, text: str, most: int) -> str:
    """Returns the beginning of a text that has at most `most` tokens, cut at the end of a token.

    Special tokens in the text are replaced by spaces, so that a document cannot end the chat message that contains it.
    The marks of chat messages are often added tokens that are only marked as special, such as `<|eot_id|>` of Llama 3.
    """
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    for token in sorted({*tokenizer.all_special_tokens, *added}, key=len, reverse=True):
        text = text.replace(token, " ") if len(token) > 1 else text
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if len(encoded["input_ids"]) <= most:
        return text
    return text[: encoded["offset_mapping"][most - 1][1]]


def prompt_tokens(tokenizer: Any, prompt: str, start: int) -> list[int]:
    """Returns the tokens of a prompt: as a user's message if there is a chat template, else after the start token.

    Templates that can switch off the model's reasoning, such as the template of Qwen3, do so.
    """
    if not tokenizer.chat_template:
        return [start, *tokenizer.encode(prompt, add_special_tokens=False)]
    message = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False, enable_thinking=False)
    return list(tokenizer.encode(text, add_special_tokens=False))


def without_reasoning(text: str) -> str | None:
    """Returns the part of an output after the model's reasoning. None if the output ends inside the reasoning."""
    answer = text.rpartition(ANSWER)[2]
    return None if REASONING in answer else answer.strip()


def first_line(text: str) -> str:
    """Returns the first line of a text. Models that write a query may add more lines after it."""
    return next(iter(text.strip().splitlines()), "").strip()

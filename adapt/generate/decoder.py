"""Generates texts with a decoder and continuous batching: waiting texts replace finished texts.

A batch has a slot per text. As soon as enough texts have ended, waiting texts take their slots, so that no text waits
for the longest text of its batch. The keys and values of earlier tokens are stored in one buffer per layer. In this
buffer, the last tokens of all texts share a column:

    slot 0   . . . a a a a
    slot 1   . a a a a a a
    slot 2   . . . . . b b     <- a text that began later

Columns before a text's first token are masked. A step writes one column, and attention reads only the columns of the
longest text. When the end of the buffer is reached, the columns in use are moved back to the buffer's beginning.
"""

import inspect
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from adapt.generate.sampling import Request, draw_tokens, never_drawn, uniforms
from adapt.model import load, locate, safeguards, tokenizer
from adapt.model.additions.table import additions_of
from adapt.support.errors import ModelError

REFILL = 8
"""Waiting texts take the free slots as soon as 1/REFILL of all slots are free. A single forward pass processes the
prompts of these texts."""
SPARE = 64
"""Minimum number of spare columns of the buffer. At least this many steps pass between two moves of its columns."""


class Columns:
    """The columns of the buffers that are in use: from `first` (inclusive) to `end` (exclusive).

    Args:
        slots: number of texts that are generated at the same time.
        longest: maximum length of a text [tokens].
    """

    def __init__(self, slots: int, longest: int) -> None:
        self.slots, self.longest = slots, longest
        self.capacity = longest + max(SPARE, longest // 4)
        self.first = self.end = 0


class SlotLayer(CacheLayerMixin):
    """The keys and values of a layer for all slots: [slots, heads, columns, width], allocated once."""

    is_sliding = False

    def __init__(self, columns: Columns) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.columns = columns

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates the buffers, with the heads, width and type of the given keys and values."""
        shape = self.columns.slots, key_states.shape[1], self.columns.capacity
        self.keys = key_states.new_zeros(*shape, key_states.shape[3])
        self.values = value_states.new_zeros(*shape, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes the keys and values of one token per slot. Returns the keys and values in all columns in use."""
        assert self.keys is not None
        assert self.values is not None
        first, end = self.columns.first, self.columns.end
        self.keys[:, :, end] = key_states[:, :, 0]
        self.values[:, :, end] = value_states[:, :, 0]
        return self.keys[:, :, first : end + 1], self.values[:, :, first : end + 1]

    def fill(self, slots: Tensor, layer: Any) -> None:
        """Writes the keys and values of prompts to the given slots. The last column in use gets the last tokens."""
        if not self.is_initialized:
            self.lazy_initialization(layer.keys, layer.values)
        assert self.keys is not None
        assert self.values is not None
        end, length = self.columns.end, layer.keys.shape[2]
        self.keys[slots, :, end - length : end] = layer.keys
        self.values[slots, :, end - length : end] = layer.values

    def move(self, length: int, end: int) -> None:
        """Moves the last `length` columns in use such that they end at column `end`."""
        for held in (self.keys, self.values):
            if held is not None:
                held[:, :, end - length : end] = held[:, :, self.columns.end - length : self.columns.end].clone()

    def keep(self, slots: Tensor) -> None:
        """Removes all slots except the given slots."""
        self.keys, self.values = (held if held is None else held[slots] for held in (self.keys, self.values))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the number of columns that attention reads, and 0 as the index of the first column."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Returns the number of columns in use."""
        return self.columns.end - self.columns.first

    def get_max_length(self) -> int:
        """Returns -1 (no limit), because the columns in use are moved to the front before the buffer is full."""
        return -1


class Decoder:
    """A decoder that generates texts. It is loaded on the GPU that this process may use, or else on the CPU.

    Raises:
        ModelError: the model is not a decoder, cannot be loaded, has added modules, stores a state other than the keys
            and values of earlier tokens, or has no start token.
    """

    def __init__(self, pretrained: locate.Pretrained) -> None:
        folder = pretrained.model
        config = tokenizer.load_config(folder, pretrained.trust_remote_code)
        load.check_direction(config, True, folder)
        if additions_of(config):
            raise ModelError(
                f"{folder} has added modules, such as adapters, which text generation does not support",
                "use the model from before these modules were added: set it as generate.generator, with"
                " mixture.replay_kind decoder",
            )
        self.tokenizer = tokenizer.load_tokenizer(folder, pretrained.tokenizer, pretrained.trust_remote_code)
        with safeguards.quiet():
            model, report = load.read_weights(AutoModelForCausalLM, folder, config, pretrained.trust_remote_code)
        load.check_complete(report["missing_keys"], report["mismatched_keys"], folder)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = torch.bfloat16 if self.device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
        self._model: Any = torch.nn.Module.to(model.eval(), self.device, dtype)
        self._layers = _layers_of(config, folder)
        known = inspect.signature(self._model.forward).parameters
        self._takes_positions = "position_ids" in known
        self._last_only: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        ends = getattr(self._model.generation_config, "eos_token_id", None)
        ends = ends if isinstance(ends, list) else [ends]
        self.ends = frozenset(int(end) for end in (*ends, self.tokenizer.eos_token_id) if end is not None)
        self._never = never_drawn(self.tokenizer, int(config.get_text_config().vocab_size), self.ends).to(self.device)
        self._ends = torch.tensor(sorted(self.ends), device=self.device)

    @property
    def start(self) -> int:
        """The token that begins a text: the start token, or the end-of-text token if the model has no start token."""
        start = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if start is None else start)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Decodes tokens into text, without special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], seed: int, top_p: float, at_once: int) -> list[list[int]]:
        """Generates texts, and returns the new tokens of each text without the end-of-text token.

        At most `at_once` texts are generated at the same time. `top_p` is described at
        `adapt.generate.sampling.draw_tokens`.
        """
        return _Batch(self, requests, seed, top_p, at_once).run()

    def first_scores(self, prompts: Sequence[list[int]]) -> tuple[Tensor, Any]:
        """Returns the scores of the token after each prompt, [prompts, V], and the prompts' keys and values.

        Shorter prompts are padded on the left.
        """
        longest = max(map(len, prompts))
        tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        lengths = torch.tensor(list(map(len, prompts)))
        real = torch.arange(longest) >= longest - lengths[:, None]
        positions = (torch.arange(longest) - (longest - lengths[:, None])).clamp(min=0)
        cache = DynamicCache()
        return self._scores(tokens, real, positions, cache), cache

    def next_scores(self, tokens: Tensor, real: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Returns the scores of the next token of each slot, [slots, V].

        Args:
            tokens: last token of each slot, int64 [slots].
            real: which columns contain a token of the slot, bool [slots, columns]. The last column contains `tokens`.
            positions: position of the token in its text, int64 [slots].
            cache: keys and values of earlier tokens. The keys and values of `tokens` are added.
        """
        return self._scores(tokens[:, None], real, positions[:, None], cache)

    def _scores(self, tokens: Tensor, real: Tensor, positions: Tensor, cache: Any) -> Tensor:
        options = {"position_ids": positions.to(self.device)} if self._takes_positions else {}
        output = self._model(
            input_ids=tokens.to(self.device),
            attention_mask=real.long().to(self.device),
            past_key_values=cache,
            use_cache=True,
            **options,
            **self._last_only,
        )
        scores: Tensor = output.logits[:, -1].float()
        return scores.masked_fill(self._never, -torch.inf)

    def new_buffers(self, columns: Columns) -> list[SlotLayer]:
        """Returns empty buffers for all layers."""
        return [SlotLayer(columns) for _ in range(self._layers)]

    def draw(self, scores: Tensor, too_short: np.ndarray, temperatures: np.ndarray, p: float, draws: np.ndarray) -> Any:
        """Draws and returns the next token of each text, as a numpy array, int64 [texts].

        Args:
            scores: scores of the vocabulary, [texts, V].
            too_short: which texts may not end yet, bool [texts].
            temperatures: temperature of each text, float [texts].
            p: see `top_p` of `adapt.generate.sampling.draw_tokens`.
            draws: random number of each text, float64 [texts].
        """
        if too_short.any():
            short = torch.from_numpy(too_short).to(self.device)
            scores[:, self._ends] = scores[:, self._ends].masked_fill(short[:, None], -torch.inf)
        hot = torch.from_numpy(temperatures).float().to(self.device)
        return draw_tokens(scores, hot, p, torch.from_numpy(draws).to(self.device)).cpu().numpy()


def _layers_of(config: Any, folder: Path) -> int:
    """Returns the number of layers, all of which must store keys and values."""
    layers = DynamicCache(config=config).layers
    known = {DynamicLayer.__name__, DynamicSlidingWindowLayer.__name__}
    if other := {type(layer).__name__ for layer in layers} - known:
        raise ModelError(
            f"the layers of {folder} store a state other than keys and values ({', '.join(sorted(other))}), which text"
            " generation does not support",
            "choose a transformer such as GPT-2, Llama, Mistral or Qwen",
        )
    return len(layers)


class _Batch:
    """The texts that are being generated in slots, and the texts that wait for a slot."""

    def __init__(self, decoder: Decoder, requests: Sequence[Request], seed: int, top_p: float, at_once: int) -> None:
        self._decoder, self._requests, self._seed, self._top_p = decoder, requests, seed, top_p
        by_length = sorted(range(len(requests)), key=lambda place: -len(requests[place].prompt))
        self._waiting = deque(by_length)
        """Indices of the waiting texts, longest prompts first, so that prompts need little padding."""
        slots = min(at_once, len(requests))
        longest = max((len(each.prompt) + each.most for each in requests), default=1)
        self._columns = Columns(slots, longest)
        self._buffers = decoder.new_buffers(self._columns)
        self._cache = Cache(layers=[*self._buffers])
        self._place = np.full(slots, -1)
        """Index of the text in each slot; -1 for a free slot."""
        self._length = np.zeros(slots, np.int64)
        """Number of tokens in each slot whose keys and values are stored."""
        self._last = np.zeros(slots, np.int64)
        """Last token of each slot. The next step computes its keys and values."""
        self._found: list[list[int]] = [[] for _ in requests]

    def run(self) -> list[list[int]]:
        """Generates all texts."""
        while self._waiting or (self._place >= 0).any():
            free = np.flatnonzero(self._place < 0)
            if self._waiting and len(free) * REFILL >= len(self._place):
                self._begin(free[: len(self._waiting)])
            elif not self._waiting and 2 * len(free) >= len(self._place):
                self._shrink()
            if (self._place >= 0).any():
                self._step()
        return self._found

    def _begin(self, slots: np.ndarray) -> None:
        """Puts waiting texts into free slots, and draws their first tokens."""
        places = np.array([self._waiting.popleft() for _ in slots])
        prompts = [self._requests[place].prompt for place in places]
        scores, computed = self._decoder.first_scores(prompts)
        longest = max(map(len, prompts))
        if self._columns.end < longest:
            self._move(longest)
        for layer, prompt in zip(self._buffers, computed.layers, strict=True):
            layer.fill(torch.from_numpy(slots).to(self._decoder.device), prompt)
        self._place[slots], self._length[slots] = places, list(map(len, prompts))
        self._take(slots, scores)

    def _step(self) -> None:
        """Computes the scores after the last token of each slot, and draws the next tokens."""
        columns = self._columns
        active = self._place >= 0
        self._length[~active] = 0
        if columns.end == columns.capacity:
            self._move(int(self._length.max()))
        columns.first = columns.end - int(self._length.max())
        width = columns.end - columns.first + 1
        real = np.arange(width) >= width - 1 - self._length[:, None]
        scores = self._decoder.next_scores(
            torch.from_numpy(self._last), torch.from_numpy(real), torch.from_numpy(self._length), self._cache
        )
        columns.end += 1
        self._length[active] += 1
        slots = np.flatnonzero(active)
        self._take(slots, scores if active.all() else scores[torch.from_numpy(slots).to(scores.device)])

    def _take(self, slots: np.ndarray, scores: Tensor) -> None:
        """Draws the next token for each of the given slots, and frees the slots of texts that have ended."""
        requests = [self._requests[place] for place in self._place[slots]]
        counts = np.array([len(self._found[place]) for place in self._place[slots]])
        numbers = np.array([each.number for each in requests], np.uint64)
        draws = uniforms(self._seed, numbers, counts.astype(np.uint64))
        too_short = counts < np.array([each.fewest for each in requests])
        temperatures = np.array([each.temperature for each in requests])
        tokens = self._decoder.draw(scores, too_short, temperatures, self._top_p, draws)
        self._last[slots] = tokens
        for slot, token, request in zip(slots, tokens.tolist(), requests, strict=True):
            found = self._found[self._place[slot]]
            if token not in self._decoder.ends:
                found.append(token)
            if token in self._decoder.ends or len(found) == request.most:
                self._place[slot] = -1

    def _move(self, end: int) -> None:
        """Moves the columns in use such that they end at column `end`."""
        length = int(self._length[self._place >= 0].max(initial=0))
        for layer in self._buffers:
            layer.move(length, end)
        self._columns.first, self._columns.end = end - length, end

    def _shrink(self) -> None:
        """Removes the free slots, because no text waits for them."""
        kept = np.flatnonzero(self._place >= 0)
        if not len(kept) or len(kept) == len(self._place):
            return
        for layer in self._buffers:
            layer.keep(torch.from_numpy(kept).to(self._decoder.device))
        self._columns.slots = len(kept)
        self._place, self._length, self._last = self._place[kept], self._length[kept], self._last[kept]

"""Measures how fast text is generated, relative to a plain loop of `model.generate` over batches of the same prompts.

Both sides sample with the same temperature and lengths, on one thread as a Ray actor does. Speed is counted in tokens
per second. The model is a Phi with random weights, which ends a text after about 100 tokens. For `with_prompts`, texts
begin with prompts of 1 to 64 tokens. `scaling_2` is the rate of two actors together, divided by the rate of one actor.
Time in which an actor starts or has no block to make is not counted. The benchmark takes about 8 minutes on two cores.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from math import log
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import Options, Result, apart, main, workplace
from benchmarks.rounds import ROUNDS, Ratio, Watch, alternate

TARGETS = {"from_start": (">=", 1.0), "with_prompts": (">=", 1.0), "scaling_2": (">=", 1.6)}
VOCABULARY, MEAN_LENGTH, LONGEST, BATCH = 8000, 100, 256, 32


def measure(options: Options) -> Result:
    """Compares our decoder with the plain loop, without and with prompts. Then compares two actors with one."""
    texts = 96 if options.quick else 192
    result = Result({}, [("texts", str(texts)), ("batch", str(BATCH))])
    with workplace() as folder:
        apart(write_model, str(folder / "model"), options.quick)
        for figure, longest_prompt in (("from_start", 0), ("with_prompts", 64)):
            watch = Watch()
            rates = apart(compared, str(folder / "model"), texts, longest_prompt)
            result.compare(figure, Ratio.of(rates, watch.stop()))
            shown = " against ".join(f"{median(side):,.0f}" for side in zip(*rates, strict=True))
            result.details.append((f"tokens/s, {figure}", shown))
        tokens = texts * MEAN_LENGTH
        actors: dict[str, Callable[[], float]] = {
            str(count): partial(apart, on_ray, str(folder / "model"), str(folder / "runs"), tokens, count)
            for count in (1, 2)
        }
        found = alternate(actors)
        result.compare("scaling_2", found.ratio("2", "1", float))
        result.details.append(("tokens/s, two actors", f"{found.middle('2', float):,.0f}"))
    return result


def write_model(path: str, is_small: bool) -> None:
    """Writes a Phi with random weights, whose head gives the end-of-text token a probability of about 1/100."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PhiConfig, PhiForCausalLM, PreTrainedTokenizerFast

    from benchmarks.small_decoder import END

    words = {END: 0, **{f"w{number}": number for number in range(1, VOCABULARY)}}
    backend = Tokenizer(models.WordLevel(words, unk_token=END))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END, eos_token=END, unk_token=END)
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    width, layers = (128, 2) if is_small else (256, 4)
    model = PhiForCausalLM(
        PhiConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            max_position_embeddings=512,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    with torch.no_grad():
        model.lm_head.bias[0] = log(VOCABULARY / MEAN_LENGTH)
    model.save_pretrained(path)


def prompts_of(texts: int, longest: int) -> list[list[int]]:
    """Makes prompts of 1 to `longest` tokens after the start token."""
    import numpy as np

    rng = np.random.default_rng(0)
    lengths = rng.integers(1, longest + 1, texts) if longest else np.zeros(texts, np.int64)
    return [[0, *rng.integers(1, VOCABULARY, int(length)).tolist()] for length in lengths]


def compared(path: str, texts: int, longest_prompt: int) -> list[tuple[float, float]]:
    """Returns the tokens per second of `adapt.generate.decoder` and of the plain loop, in alternating order."""
    import torch

    torch.set_num_threads(1)
    prompts = prompts_of(texts, longest_prompt)
    sides = ours(path, prompts), plain(path, prompts)
    for side in sides:
        side(1, BATCH)  # untimed, because first calls allocate memory
    rates = []
    for number in range(ROUNDS):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        found = {place: rate(sides[place], 2 + number, texts) for place in order}
        rates.append((found[0], found[1]))
    return rates


def rate(side: Callable[[int, int], int], seed: int, texts: int) -> float:
    """Returns the tokens per second of `side`, which is our decoder or the plain loop."""
    began = time.perf_counter()
    tokens = side(seed, texts)
    return tokens / (time.perf_counter() - began)


def ours(path: str, prompts: list[list[int]]) -> Callable[[int, int], int]:
    """Returns a function that generates with our decoder and counts the tokens. It uses the first `texts` prompts."""
    from adapt.generate.decoder import Decoder
    from adapt.generate.sampling import Request
    from adapt.model.locate import Pretrained

    decoder = Decoder(Pretrained(Path(path), Path(path)))
    requests = [Request(number, prompt, 1.0, 0, LONGEST) for number, prompt in enumerate(prompts)]
    return lambda seed, texts: sum(map(len, decoder.generate(requests[:texts], seed, 1.0, BATCH)))


def plain(path: str, prompts: list[list[int]]) -> Callable[[int, int], int]:
    """Returns a function that generates with `model.generate` in left-padded batches and counts the tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path).eval()

    def batch(some: list[list[int]]) -> int:
        longest = max(map(len, some))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in some])
        real = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in some])
        options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
        with torch.inference_mode():
            new = model.generate(input_ids=ids, attention_mask=real, max_new_tokens=LONGEST, **options)[:, longest:]
        return int((new != 0).sum())  # token 0 ends a text and pads it

    def all_batches(seed: int, texts: int) -> int:
        torch.manual_seed(seed)
        return sum(batch(prompts[start : start + BATCH]) for start in range(0, texts, BATCH))

    return all_batches


def on_ray(path: str, root: str, tokens: int, actors: int) -> float:
    """Returns the tokens per second that `actors` actors generate in total. Their start-up time is not counted."""
    import shutil

    import ray

    from adapt.config import GenerateConfig, ResourcesConfig
    from adapt.generate.generate_blocks import make_texts
    from adapt.generate.makers import FromDecoder
    from adapt.model.locate import Pretrained

    folder = Path(root) / f"{actors}-{os.getpid()}"
    folder.mkdir(parents=True)
    ray.init(num_cpus=actors, include_dashboard=False, log_to_driver=False)
    section = GenerateConfig(temperatures=[1.0], min_length=0, max_length=LONGEST, micro_batch=BATCH, prompt_tokens=1)
    maker = FromDecoder(Pretrained(Path(path), Path(path)), section, [])
    figures = make_texts(maker, actors * tokens, LONGEST, folder, ResourcesConfig())
    ray.shutdown()
    shutil.rmtree(folder)
    return actors * figures.tokens / figures.seconds


if __name__ == "__main__":
    main("generate", TARGETS, measure)

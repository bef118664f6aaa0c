"""Measures the time that Ray Train, Ray Data and DeepSpeed add to a training step of a model of RoBERTa-base's size.

The peer is a bare PyTorch loop in one process with the same model, rows, masks, precision, optimizer and clipping, and
all batches in memory. The full loop and the bare loop alternate, on the same batches. Steps on the same batch are
compared, because the times of batches differ by a fifth.
"""

import json
import multiprocessing
import os
import statistics
import time
from itertools import chain
from pathlib import Path

from adapt.config import ObjectiveConfig, TrainingConfig
from benchmarks.common import Options, Result, corpus_file, finished, job, main, workplace
from benchmarks.rounds import ROUNDS, Ratio, Watch

TARGETS = {"overhead_share": ("<=", 0.05)}
BATCH, LENGTH, WARM_UP = 8, 128, 2


def measure(options: Options) -> Result:
    """Measures alternating rounds of the full loop and of the bare loop."""
    steps, rounds = (6, ROUNDS) if options.quick else (20, 4)
    with workplace() as folder:
        model = _base_model(folder / "model")
        corpus = corpus_file(folder, 1500)
        full, bare, waits, watch = [], [], [], Watch()
        for seed in range(rounds):
            # the first round starts with the full loop, which prepares the text for both loops
            kinds = ("bare", "full") if seed % 2 else ("full", "bare")
            for kind in kinds:
                if kind == "bare":
                    prepared = next((folder / "runs" / "prepare").glob("*/stage.json")).parent
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        bare.append(pool.apply(_bare_loop, (model, prepared, steps, seed))[WARM_UP:])
                else:
                    _full_loop(model, corpus, folder / "runs", steps, seed)
                    reports = _reports(folder / "runs", seed)[WARM_UP:]
                    full.append([BATCH * LENGTH / report["tokens_per_s"] for report in reports])
                    waits += [report["data_wait_share"] for report in reports]
        pairs = [[a / b - 1 for a, b in zip(*both, strict=True)] for both in zip(full, bare, strict=True)]
        details = [
            ("full loop, median step", f"{statistics.median(chain(*full)):.3f} s"),
            ("bare loop, median step", f"{statistics.median(chain(*bare)):.3f} s"),
            ("rounds of steps", ", ".join(f"{statistics.median(each):+.1%} of {len(each)}" for each in pairs)),
            ("data wait", f"{statistics.mean(waits):.2%} of a step"),
            ("precision", "bf16 where the CPU multiplies in it, else fp32; the same for both"),
        ]
        result = Result({"overhead_share": statistics.median(chain(*pairs))}, details)
        result.ratios["overhead_share"] = Ratio(tuple(map(statistics.median, pairs)), rounds * watch.stop().is_noisy)
        return result


def _base_model(folder: Path) -> Path:
    """Makes a random model of RoBERTa-base's dimensions (12 x 768, 50,265 tokens) with the demo's tokenizer."""
    from transformers import BertConfig, BertForMaskedLM

    from adapt.model.demo_checkpoint import demo_checkpoint
    from adapt.model.tokenizer import load_tokenizer

    BertForMaskedLM(BertConfig(vocab_size=50_265)).save_pretrained(folder)
    load_tokenizer(demo_checkpoint("demo:bert-tiny")).save_pretrained(folder)
    return folder


def _training(steps: int) -> TrainingConfig:
    return TrainingConfig(max_steps=steps, global_batch_size=BATCH, sequence_length=LENGTH, micro_batch=BATCH)


def _full_loop(model: Path, corpus: Path, root: Path, steps: int, seed: int) -> None:
    training = {"max_steps": steps, "global_batch_size": BATCH, "sequence_length": LENGTH, "log_interval_steps": 1}
    arguments = [f"--training.{name}={value}" for name, value in training.items()]
    where = [f"--model.path={model}", f"--corpus.paths={corpus}", f"--storage.root={root}", f"--seed={seed}"]
    small = [
        f"--evaluation.sequence_length={LENGTH}",
        "--evaluation.max_documents=2",
        f"--training.micro_batch={BATCH}",
    ]
    finished(job([*where, *arguments, *small, "--training.checkpoint_interval_steps=1000"]))


def _reports(root: Path, seed: int) -> list[dict[str, float]]:
    for record in root.glob("train/*/stage.json"):
        if json.loads(record.read_text())["what"]["seed"] == seed:
            return [json.loads(line) for line in (record.parent / "metrics.jsonl").read_text().splitlines()]
    raise SystemExit("the full loop left no record")


def _bare_loop(model_folder: Path, prepared: Path, steps: int, seed: int) -> list[float]:
    """Trains with a bare PyTorch loop, and returns the time of each step [s]."""
    import torch

    from adapt.corpus.shard_batches import Feed
    from adapt.model.load import load_model
    from adapt.model.tokenizer import load_tokenizer
    from adapt.objective.masking import MaskedLanguageModelling
    from adapt.objective.objective import Batch
    from adapt.train.model_options import apply_options, resolve
    from adapt.train.schedule import learning_rate

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device, training = torch.device("cpu"), _training(steps)
    model = load_model(model_folder).train()
    apply_options(model, training, device)
    objective = MaskedLanguageModelling(ObjectiveConfig(), load_tokenizer(model_folder), seed)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        fused=True,
    )
    use_bf16 = resolve("auto", device) == "bf16"
    batches = list(Feed.of(str(prepared), LENGTH, BATCH, seed, 0, steps).read())
    seconds = []
    for step, columns in enumerate(batches):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step, steps)
        corrupted = objective.corrupt(Batch.of(columns))
        with torch.autocast("cpu", torch.bfloat16, enabled=use_bf16):
            loss = objective.loss(model, corrupted) / len(corrupted.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_gradient_norm)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main("loop_overhead", TARGETS, measure)

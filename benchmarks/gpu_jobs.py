"""Checks that dontstop's training jobs work on a GPU: the losses of each step are compared with those on the CPU.

The same job (a small BERT without dropout) runs on the CPU in fp32, and on the GPU once per setting: each precision,
each ZeRO stage, each offload, torch.compile, gradient checkpointing, and a training that is killed and started again.
Several jobs run at once and share the GPU.

The speed is measured afterwards, with one job alone: a RoBERTa-base in bf16. `job_wait` is the share of the time in
which this job waits for data, `job_mfu` its model FLOPs utilization.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import (
    ROOT,
    Options,
    Result,
    Targets,
    corpus_file,
    parser_of,
    report,
    steps_done,
    wait_for,
    workplace,
)
from benchmarks.texts import _own_tokenizer

TARGETS: Targets = {"job_wait": ("<=", 0.02)}
STEPS = 30
SETTINGS: dict[str, tuple[str, ...]] = {
    "fp32": ("training.precision=fp32",),
    "bf16": ("training.precision=bf16",),
    "fp16": ("training.precision=fp16",),
    "zero_1": ("training.precision=bf16", "resources.zero_stage=1"),
    "zero_2": ("training.precision=bf16", "resources.zero_stage=2"),
    "zero_3": ("training.precision=bf16", "resources.zero_stage=3"),
    "zero_3_fp16": ("training.precision=fp16", "resources.zero_stage=3"),
    "offload_optimizer": ("training.precision=bf16", "resources.zero_stage=2", "resources.offload=optimizer"),
    "offload_all": ("training.precision=bf16", "resources.zero_stage=3", "resources.offload=all"),
    "compile": ("training.precision=bf16", "training.compile=true"),
    "checkpointing": ("training.precision=bf16", "training.gradient_checkpointing=true"),
    "killed": ("training.precision=bf16", "training.checkpoint_interval_steps=5"),
}
"""Fields of the jobs that run on the GPU."""
MOST = {"fp32": 0.001, "other": 0.02}
"""Largest relative difference of a step's loss from the loss on the CPU that passes."""


def main() -> None:
    """Prints a line per setting and the table. Exits with code 1 if a job fails or its losses differ."""
    parser = parser_of("gpu_jobs", __doc__)
    parser.add_argument("--only", nargs="+", choices=[*SETTINGS, "speed"], help="settings to run; all by default")
    parser.add_argument("--at-once", type=int, default=4, help="number of jobs that run at the same time")
    arguments = parser.parse_args()
    options = Options(arguments.quick, arguments.data, arguments.models)
    wanted = arguments.only or [*SETTINGS, "speed"]
    names = [name for name in SETTINGS if name in wanted]
    result = Result({})
    with workplace() as folder:
        faults = _compare(folder, names, arguments.at_once, result) if names else []
        if "speed" in wanted:
            _speed(folder, options, result)
    report("gpu_jobs", TARGETS, result, arguments.json)
    for fault in faults:
        print(f"FAILED: {fault}")
    sys.exit(bool(faults))


def _compare(folder: Path, names: list[str], at_once: int, result: Result) -> list[str]:
    """Trains on the CPU and with each setting on the GPU, and compares the losses. Returns a message per fault."""
    model, corpus = save_bert(folder / "model", "small"), corpus_file(folder, 3000)
    on_cpu = ("training.precision=fp32", "resources.gpus_per_worker=0")
    with ThreadPoolExecutor(at_once) as pool:
        jobs = {
            name: pool.submit(_losses, folder / name, model, corpus, fields, name == "killed")
            for name, fields in {"cpu": on_cpu, **{name: SETTINGS[name] for name in names}}.items()
        }
    expected, faults = jobs["cpu"].result(), []
    for name in names:
        if error := jobs[name].exception():
            faults.append(f"{name}: {error}")
            continue
        losses, most = jobs[name].result(), MOST.get(name, MOST["other"])
        off = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
        result.figures[f"difference_{name}"] = off
        print(f"{name}: largest relative difference of a step's loss {off:.5f}", flush=True)
        if off > most:
            faults.append(f"{name}: a step's loss differs by {off:.4f} (at most {most}): {losses} and {expected}")
    return faults


def save_bert(folder: Path, size: str) -> Path:
    """Saves a BERT (`small`, without dropout) or a RoBERTa (`base`) with random weights, and a tokenizer."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer, RobertaConfig, RobertaForMaskedLM

    vocabulary = dict(_own_tokenizer().get_vocab())
    if size == "base":  # as many tokens as RoBERTa has
        vocabulary |= {f"[unused{number}]": number for number in range(len(vocabulary), 50_265)}
    tokenizer = BertTokenizer(vocab=vocabulary)
    torch.manual_seed(0)
    if size == "small":
        shape: dict[str, Any] = {
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        }
        shape |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(folder)
    else:
        common: dict[str, Any] = {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 0}
        RobertaForMaskedLM(RobertaConfig(vocab_size=len(tokenizer), **common)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _losses(root: Path, model: Path, corpus: Path, fields: tuple[str, ...], is_killed: bool) -> list[float]:
    """Runs a job and returns the loss of each step. If `is_killed`, kills the job once, and starts it again."""
    lengths = ("training.sequence_length=128", "evaluation.sequence_length=128")
    training = (f"training.max_steps={STEPS}", "training.global_batch_size=32", "training.learning_rate=5.0e-4")
    every = ("training.log_interval_steps=1",)
    arguments = _arguments(root, model, corpus, (*lengths, *training, *every, *fields))
    if is_killed:
        process = _job(root, arguments)
        wait_for(lambda: steps_done(root) >= STEPS // 2, process)
        process.kill()
        process.wait()
    _finished(root, arguments)
    entries = [json.loads(line) for file in root.glob("train/*/metrics.jsonl") for line in file.open()]
    steps = {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}
    return [float(steps[step]) for step in sorted(steps)]


def _arguments(root: Path, model: Path, corpus: Path, fields: tuple[str, ...]) -> list[str]:
    places = (f"model.path={model}", f"corpus.paths={corpus}", f"storage.root={root}")
    return [f"--{field}" for field in (*places, *fields)]


def _job(root: Path, arguments: list[str]) -> subprocess.Popen[str]:
    """Starts a job. Its messages go to a file beside its storage."""
    command = [sys.executable, str(ROOT / "jobs" / "dapt.py"), *arguments]
    with root.with_suffix(".messages").open("a") as messages:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True)


def _finished(root: Path, arguments: list[str]) -> dict[str, Any]:
    """Runs a job to its end and returns its metrics. Raises RuntimeError with its last messages if it fails."""
    process = _job(root, arguments)
    output, _ = process.communicate()
    if process.returncode:
        messages = root.with_suffix(".messages").read_text().splitlines()[-15:]
        raise RuntimeError("\n".join((f"exit code {process.returncode}", *messages)))
    return dict(json.loads(output.splitlines()[-1])["metrics"])


def _speed(folder: Path, options: Options, result: Result) -> None:
    """Trains a RoBERTa-base by one job that has the GPU for itself."""
    steps, rows, length = (4, 4, 128) if options.quick else (150, 128, 512)
    model, corpus = save_bert(folder / "base", "base"), corpus_file(folder, 2000 if options.quick else 60_000)
    fields: tuple[str, ...] = (
        f"training.max_steps={steps}",
        f"training.global_batch_size={rows}",
        f"training.micro_batch={rows}",
    )
    fields = (*fields, f"training.sequence_length={length}")
    metrics = _finished(folder / "speed", _arguments(folder / "speed", model, corpus, fields))
    result.figures |= {"job_wait": metrics["data_wait_share"], "job_mfu": metrics["mfu"]}
    result.details.append(("speed of the job", f"{metrics['tokens_per_s']:,.0f} tokens/s"))
    result.details.append(("its peak memory", f"{metrics['peak_memory_bytes'] / 1e9:.1f} GB"))


if __name__ == "__main__":
    main()

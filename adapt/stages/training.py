"""The training stage."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config, TrainingConfig, what
from adapt.console import log
from adapt.model.locate import Pretrained
from adapt.preflight import check_memory, check_space
from adapt.runner import Outcome, Stage, Store
from adapt.stages.base import Inputs
from adapt.stages.corpora import MEASURED, REPLAY
from adapt.stages.lengths import Lengths, texts_of, weights_of
from adapt.train.branch import start_from_branch
from adapt.train.flops import together
from adapt.train.job import CHECKPOINTS, Job
from adapt.train.schedule import branch_step, check_warmup, rows_of
from adapt.train.track import anchored

if TYPE_CHECKING:
    from adapt.corpus.online import Online


RAN_ON = (
    *("workers", "zero_stage", "offload", "precision", "micro_batch", "accumulation"),
    *("gradient_checkpointing", "compile", "device"),
)
"""What a training's record says of how it ran."""
IMPORTANCE = "(importance)"
"""An input: the units that past domains need."""
METHOD_INPUTS = {IMPORTANCE: "importance"}
"""Inputs that a method asks for, and what it calls them."""
CONTRAST = (
    "contrast_weight",
    "contrast_temperature",
    "contrast_documents",
    "contrast_cost",
    "economy_fraction",
    "injected_dropout",
)


class Training(Lengths):
    """Training runs over prepared or streamed corpora."""

    def trained(
        self,
        corpora: Mapping[str, Stage],
        replay: Stage | None = None,
        batch_examples: int | None = None,
        transductive: bool = False,
        importance: Stage | None = None,
    ) -> Stage:
        """A training run over prepared corpora, by name, and general text mixed in.

        Args:
            corpora: to train on.
            replay: general text.
            batch_examples: documents that fill a step on average; None for the configured number of sequences.
            transductive: whether the text of dev and test is among it, which the record then says.
            importance: what the method, if it needs that, must not forget.
        """
        config = self.config
        batch = {"global_batch_size": f"{batch_examples} examples"} if batch_examples else {}
        identity = {
            "mixture": {**what(config.mixture), "sources": list(corpora), "weights": weights_of(config.corpus)},
            "model": self._model_digest(),
            "attention_dropout": config.model.attention_dropout,
            "objective": what(config.objective),
            "training": {**what(config.training), **batch},
            "seed": config.seed,
            **_method(config),
        }

        def run(folder: Path, inputs: Inputs) -> Outcome:
            sized = self._sized(batch_examples, texts_of(inputs))
            outcome = sized._train(train, folder, inputs, self._start_of(inputs))
            return replace(outcome, metrics={**outcome.metrics, "transductive": transductive or self._knows(inputs)})

        train = Stage(
            "train",
            config.name,
            identity,
            run,
            {
                **corpora,
                **({REPLAY: replay} if replay else {}),
                **self._started(),
                **({IMPORTANCE: importance} if importance else {}),
            },
            needs=self._workers_and_readers(),
        )
        return train

    def _workers_and_readers(self) -> dict[str, float]:
        """What a training takes of the cluster: each worker's share, and a core for the tasks that read its rows."""
        resources = self.config.resources
        gpus = {"GPU": resources.gpus_per_worker * resources.workers} if resources.gpus_per_worker else {}
        return {"CPU": resources.workers * resources.cpus_per_worker + 1, **gpus}

    def _train(self, stage: Stage, folder: Path, inputs: Inputs, start: Pretrained) -> Outcome:
        training, texts = self.config.training, texts_of(inputs)
        mixture = self._mixture(texts)
        length = self._length(mixture)
        check_warmup(training, length.steps)
        kept = training.keep_checkpoints + (branch_step(training, length.steps) is not None)
        check_space(folder, start.model, kept)
        from adapt.runtime import connect
        from adapt.train.launch import launch

        connect(self.config.resources)
        check_memory(self.config, self.pretrained.model, together(record.metrics for record in texts.values()))
        job = Job(
            config=replace(self.config, tracking=anchored(self.config.tracking)),
            key=stage.key,
            folder=str(folder),
            corpora=tuple(str(record.path) for record in texts.values()),
            mixture=mixture,
            pretrained=start,
            steps=length.steps,
            online=self._to_stream(texts, folder),
            past={METHOD_INPUTS[name]: str(inputs[name].path) for name in METHOD_INPUTS if name in inputs},
        )
        run_folder = folder / CHECKPOINTS / job.run_name
        start_from_branch(stage, Store(self.root), training, length.steps, run_folder)
        outcome = _training_outcome(launch(job), self.config.resources.price_per_device_hour)
        if not mixture:
            if outcome.metrics["steps"] < length.steps:
                log(f"the corpus was passed through after {outcome.metrics['steps']} of {length.steps} steps")
            return outcome
        drawn = mixture.drawn(outcome.metrics["steps"] * training.global_batch_size)
        return replace(outcome, metrics={**outcome.metrics, "sources": _shares(texts, drawn, training)})

    def _to_stream(self, inputs: Inputs, folder: Path) -> "Online | None":
        """The corpus, if it is streamed."""
        if not self.config.corpus.streaming:
            return None
        from adapt.corpus.dedup import duplicates_file

        needed = inputs["domain"].inputs
        duplicates = Path(needed["dedup"]["path"]) / duplicates_file(0) if "dedup" in needed else None
        measured = [Path(each["path"]) for name, each in needed.items() if name.startswith(MEASURED)]
        return self._online(self._streamed, folder, duplicates, measured)


def _method(config: Config) -> dict[str, Any]:
    """What of a method determines the training; nothing for plain training, whose keys are older than methods."""
    if config.method.kind == "plain":
        return {}
    das = config.das
    contrast = [name for name in CONTRAST if name != "economy_fraction" or das.contrast_cost == "economy"]
    masks = ["plasticity_floor"] if das.soft_mask != "none" else []
    used = ["soft_mask", *masks, *(contrast if das.contrast_weight else [])]
    return {"method": {"kind": config.method.kind, **{name: getattr(das, name) for name in used}}}


def _training_outcome(result: Mapping[str, Any], price_per_hour: float | None) -> Outcome:
    seconds = max(result["seconds"], 1e-9)
    metrics = {
        "steps": result["step"],
        "tokens": result["tokens"],
        "tokens_per_s": result["own_tokens"] / seconds,
        "data_wait_share": result["data_wait_seconds"] / seconds,
        "device_seconds": result["device_seconds"],
        "flops": result.get("flops"),
        "mfu": result.get("mfu"),
        "peak_memory_bytes": result["peak_memory_bytes"],
    }
    cost = {**cost_of(result["device_seconds"], price_per_hour), "tokens": result["own_tokens"]}
    return Outcome(metrics, cost, {name: result[name] for name in RAN_ON})


def cost_of(device_seconds: float, price_per_hour: float | None) -> dict[str, Any]:
    """For a record."""
    hours = device_seconds / 3600
    cost = None if price_per_hour is None else hours * price_per_hour
    return {"device_seconds": device_seconds, "device_hours": hours, "cost": cost}


def _shares(inputs: Inputs, drawn: list[int], training: TrainingConfig) -> dict[str, Any]:
    """What each source gave to a run: rows, tokens (to within a row) and its share of the rows."""
    found = {}
    for (name, record), rows in zip(inputs.items(), drawn, strict=True):
        tokens = record.metrics["train_tokens"]
        given = round(rows * tokens / max(rows_of(tokens, training), 1))
        found[name] = {"rows": rows, "tokens": given, "share": rows / max(sum(drawn), 1)}
    return found

"""The stages of labelled tasks: prepared, learnt once a seed, and the scores of all seeds together."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from adapt.config import CorpusConfig, TaskConfig, what
from adapt.corpus.manifest import Manifest, build_manifest, check_listed
from adapt.preflight import check_weights
from adapt.runner import Outcome, Record, Stage
from adapt.runner.packages import deciding
from adapt.stages.base import Inputs
from adapt.stages.training import Training, cost_of

PACKAGES = {"feature_extraction": ("scikit-learn",), "lora": ("peft",)}
"""What decides the scores of a mode beside our own code."""
SEED = "seed-"
"""Beginning of the names of the inputs of stage `scores`."""


class Tasks(Training):
    """Labelled tasks."""

    def task(self, task: TaskConfig) -> Stage:
        """A labelled task: read, checked, tokenized, searched for leaks."""
        from adapt.task.prepare import check_task

        check_task(task)
        splits = {split: self._split(task, split) for split in ("train", "dev", "test")}
        identity = {
            **what(task),
            "splits": {split: listed.digest for split, listed in splits.items()},
            **self._tokenizer_identity(),
        }

        def run(folder: Path, _: Inputs) -> Outcome:
            return self._prepare_task(task, list(splits.values()), folder)

        return Stage("task", task.name, identity, run, needs={"CPU": 1})

    def finetuned(self, seed: int) -> Stage:
        """The model, taught the task with one seed."""
        config = self.config
        identity = {
            "model": self._model_digest(),
            "attention_dropout": config.model.attention_dropout,
            "finetune": what(config.finetune),
            **({"save_model": True} if config.finetune.save_model else {}),  # one that was not kept is not there
            "seed": seed,
            **deciding(*PACKAGES.get(config.finetune.mode, ())),
        }
        return Stage(
            "finetune",
            f"{config.name}-{seed}",
            identity,
            lambda folder, inputs: self._finetune(seed, folder, inputs),
            {"task": self.task(config.task), **self._started()},
            needs=self._a_run(),
        )

    def scores(self) -> Stage:
        """The model, taught the task with each of the configured seeds: mean, deviation and interval of its scores."""
        seeds = {f"{SEED}{seed}": self.finetuned(seed) for seed in self.config.finetune.seeds}
        self._digests.save()
        return Stage("scores", self.config.name, {}, lambda folder, inputs: _summarize(inputs), seeds, needs={})

    def _split(self, task: TaskConfig, split: str) -> Manifest:
        return build_manifest(replace(CorpusConfig(), paths=getattr(task, split)), self._digests)

    def _prepare_task(self, task: TaskConfig, listed: Sequence[Manifest], folder: Path) -> Outcome:
        from adapt.task.prepare import prepare_task

        metrics = prepare_task(task, self.pretrained, folder)
        for each in listed:
            check_listed(each)
        return Outcome(metrics)

    def _a_run(self) -> Mapping[str, float]:
        """What one seed takes of the cluster. GPUs are known once there is one: Ray then holds runs back itself."""
        finetune = self.config.finetune
        gpus = {"GPU": finetune.gpus_per_seed} if finetune.gpus_per_seed else {}
        return {"CPU": finetune.cpus_per_seed, **gpus}

    def _finetune(self, seed: int, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.finetune.run import Run, finetune
        from adapt.runtime import connect

        start = self._start_of(inputs)
        check_weights(start.model)
        connect(self.config.resources)
        found = finetune(Run(self.config, start, str(inputs["task"].path), seed), folder)
        metrics = {**found, "transductive": self._knows(inputs)}
        return Outcome(metrics, cost_of(metrics["device_seconds"], self.config.resources.price_per_device_hour))


def _summarize(inputs: Mapping[str, Record]) -> Outcome:
    """Scores of all seeds; none is left out, whatever it came to."""
    from adapt.statistics.seeds import spread

    runs = [record for name, record in inputs.items() if name.startswith(SEED)]
    scores = [record.metrics["score"] for record in runs]
    first = runs[0].metrics
    metrics = {
        **{name: first[name] for name in ("metric", "mode", "majority_score", "transductive")},
        "scores": {str(record.metrics["seed"]): record.metrics["score"] for record in runs},
        **asdict(spread(scores)),
        "degenerate": sum(bool(record.metrics["degenerate"]) for record in runs),
        "without_leaks": None,
    }
    if first.get("score_without_leaks") is not None:
        metrics["without_leaks"] = asdict(spread([record.metrics["score_without_leaks"] for record in runs]))
    seconds = sum(record.cost["device_seconds"] for record in runs)
    return Outcome(metrics, {"device_seconds": seconds, "device_hours": seconds / 3600})

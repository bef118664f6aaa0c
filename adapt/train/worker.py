"""Runs one rank of a training run: builds or resumes model, engine and data stream, trains, and exports the model."""

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import get_device

from adapt.corpus.shard_batches import Feed, streamed
from adapt.corpus.streaming import serve, served
from adapt.corpus.token_shards import Columns
from adapt.method.base import Method, Setting
from adapt.method.table import method_of
from adapt.model.architecture import WHY
from adapt.model.packing import isolation, padded
from adapt.model.packing.packed import Packed
from adapt.model.size import model_size
from adapt.model.start import MODEL_FOLDER
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import Batch, Objective
from adapt.objective.table import OBJECTIVES, objective_options, sees_only_earlier, with_generator
from adapt.ray.node_files import at_home, on_node
from adapt.ray.runtime import is_own_ray
from adapt.runner.files import folder_aside, share_with_group, write_atomically
from adapt.runner.record import load_record
from adapt.support.heartbeat import beat, slowest_start, watched_to_the_end
from adapt.terminal.console import log_values
from adapt.train import failure, held_time, metric_trackers, model_options, spikes
from adapt.train.capacity.flops import added_work, mean_length, summed_sizes, workload
from adapt.train.capacity.micro_batch import RankPlace, passes
from adapt.train.checkpoints import checkpoint, requested_checkpoints, stored_checkpoints
from adapt.train.checkpoints.branch import BRANCHES
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from adapt.train.meter import Utilization, peak_memory
from adapt.train.points import Place, Points
from adapt.train.restarts import RestartLog
from adapt.train.training_run import CARRIED, CHECKPOINTS, PROGRESS_FILE, Progress, TrainingRun, tell
from adapt.train.worker_process import die_with_parent, only_run, use_threads

_LARGE = (f"{CHECKPOINTS}/", f"{BRANCHES}/", f"{MODEL_FOLDER}/", f"{CARRIED}/")
"""Folders of the stage whose files ranks do not read. The only exception is the checkpoint that a rank loads."""


def train_rank(job: TrainingRun, sealing: stored_checkpoints.Sealing) -> None:
    """Runs one rank from start to end.

    All errors are raised. Otherwise, other ranks would wait for this rank. Ray Train ends all ranks after an error.
    `adapt.train.ray_train` decides which errors end the run. After all other errors, the run resumes from the last
    checkpoint.
    """
    rank = ray.train.get_context().get_world_rank()
    die_with_parent()
    folder = Path(job.folder)
    stage = f"{folder.parent.name}/{folder.name}"
    beat("waiting for the files of the stage", patient=True)
    with log_values(stage=stage, rank=rank), failure.portable_errors(), on_node(folder, leaves=_LARGE):
        share_with_group(folder.parent.parent)
        with only_run(folder, rank), watched_to_the_end():
            _train(job, rank, sealing)


def _train(job: TrainingRun, rank: int, sealing: stored_checkpoints.Sealing) -> None:
    beat("loading the model")
    parts = RankParts.of(job)
    folder = Path(job.folder)
    if rank == 0:
        at_home(folder, failure.note_pass, folder, parts.resources["micro_batch"])
    engine, method = parts.loop.engine, parts.loop.method
    method.begin(engine)
    run_folder, branch = folder / CHECKPOINTS / job.run_name, job.branch_step
    points = parts.loop.points
    checkpoints = checkpoint.Checkpoints(engine, method, run_folder, sealing, folder / BRANCHES, branch, points)
    beat("loading the checkpoint", patient=True)
    progress, restarts = checkpoints.load(), RestartLog(folder)
    beat("starting to read the corpus", patient=True)
    nodes, starts = rank_nodes(), _starts()
    if rank == 0:
        at_home(folder, restarts.group_began, progress.step, [node for node, _ in nodes], dict(nodes))
    loop = replace(parts.loop, spike_text=spikes.SpikeText(job))
    if rank == 0:
        loop = replace(loop, reached=partial(_reach, folder, restarts, starts))
    with checkpoints.arriving():
        feeding = open_feed(job, progress.step, parts.loop.objective)
        with metric_trackers.Trackers(job, progress.step, active=rank == 0) as trackers, feeding as batches:

            def report(metrics: dict[str, Any]) -> None:
                trackers.log(parts.report(metrics))

            def save(reached: Progress) -> None:
                with held_time.spent_on("checkpoint"):
                    checkpoints.save(reached)
                parts.loop.held.record(reached.step)

            if rank == 0:
                batches = _with_padding_told(batches, parts, folder)
            workers, size = job.config.resources.workers, parts.resources["micro_batch"]
            with failure.memory_errors(job.config.training, workers, size, lambda: progress.step):
                loop.run(batches, progress, report, save)
        beat("export", patient=True)
        state = points.result(progress) if points else method.merge(parts.loop.objective.exported(engine.full_state()))
        cut = "" if parts.loop.has_ended else cut_short_notice(method, job.config.method.kind, progress.step, job.steps)
        figures = {**parts.figures(progress), "cut_short": cut, **(points.figures() if points else {})}
        if rank == 0:
            export_result(job, state, parts.tokenizer, method, parts.loop.objective)
            _carry(method, folder)
            write_atomically(folder / PROGRESS_FILE, json.dumps(figures))
        dist.barrier()


def rank_nodes() -> list[tuple[str, str]]:
    """Returns the id of each rank's node, and the node's name for messages. All ranks must call it."""
    nodes: list[Any] = [None] * dist.get_world_size()
    name = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
    dist.all_gather_object(nodes, (ray.get_runtime_context().get_node_id(), name))
    return nodes


def _starts() -> dict[str, float]:
    """Returns the duration of the slowest phase of the start so far [s], by host name. All ranks must call it."""
    starts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(starts, (socket.gethostname(), slowest_start()))
    return {host: max(seconds for other, seconds in starts if other == host) for host, _ in starts}


def _reach(folder: Path, restarts: RestartLog, starts: dict[str, float], step: int) -> None:
    """Stores the number of finished steps. After the first step of this group, also stores how long the start took.

    All ranks take their steps together, so the first step takes as long on rank 0 as on the other ranks.
    """
    restarts.reach(step)
    if starts:
        at_home(folder, restarts.started, {host: max(took, slowest_start()) for host, took in starts.items()})
        starts.clear()


@dataclass(frozen=True)
class RankParts:
    """The objects that a rank trains with."""

    loop: Loop
    tokenizer: Any
    resources: dict[str, Any]
    """Number of workers, precision, micro-batch, device and other values, as the record of the stage shows them."""
    utilization: Utilization | None
    """FLOPs and speed from which the MFU is computed. None if the model's dimensions are not known."""

    @classmethod
    def of(cls, job: TrainingRun) -> "RankParts":
        """Loads the model and wraps it for this rank's device."""
        config, context = job.config, ray.train.get_context()
        training, world = config.training, context.get_world_size()
        local_workers, trainings = context.get_local_world_size(), config.resources.trainings
        device = rank_device(local_workers, trainings)
        precision = model_options.agreed_precision(training.precision, device)

        start, method = job.pretrained, method_of(config)
        tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
        objective = make(config.objective, tokenizer, config.seed, objective_options(config))
        if job.weighed_words:
            objective.read(Path(job.weighed_words))
        setting = method_setting(job, method, device, world, precision)
        assert setting.load
        model: Any = method.prepare_model(setting.load(start.model), setting)
        objective.prepare(model)
        model_options.freeze(model, training, config.method.kind)
        model.train().to(device)
        model_options.apply_options(model, training, device)
        for each in padded.every_document_rows(model) if config.resources.zero_stage == 3 else ():
            each.compute_at_once()
        number = job.number or 1
        records = [load_record(Path(folder)) for folder in job.corpora]
        document_length = mean_length(summed_sizes(record.metrics for record in records if record))
        dimensions = model_size(start.model)
        dimensions = dimensions and method.trained_size(dimensions, range(number, number + 1))
        dimensions = dimensions and with_generator(config, dimensions, start.generator)
        place = RankPlace(device, precision, local_workers * trainings)
        folder = Path(job.folder)
        size, accumulation = passes(config, dimensions, model, objective, method, place, document_length, folder)
        parameters = sum(parameter.numel() for parameter in model.parameters())  # before ZeRO divides the parameters
        zero_stage, offload = config.resources.zero_stage, config.resources.offload
        engine = Engine(model, training, zero_stage, precision, size, accumulation, offload, job.head_warmup > 0)
        wishes = requested_checkpoints.CheckpointRequests(context.get_world_rank() == 0, folder, not is_own_ray())
        points = None
        if job.measures:
            here = Place(config, tokenizer, device, size, context.get_world_rank(), world)
            measures = [measure.ready(here) for measure in job.measures]
            points = Points(engine, measures, job.measure_interval, training, objective, method)
        loop = Loop(
            engine,
            objective,
            method,
            training,
            size,
            job.steps,
            config.seed,
            wishes,
            job.branch_step,
            job.head_warmup,
            job.first_step,
            points=points,
            held=held_time.HeldLog(folder if context.get_world_rank() == 0 else None, world),
        )
        on_gpu_name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        resources = {
            "workers": world,
            "zero_stage": zero_stage,
            "offload": offload,
            "precision": precision,
            "micro_batch": size,
            "accumulation": accumulation,
            "micro_batch_asked": training.micro_batch,  # the configured micro-batch, which may be `auto`
            "gradient_checkpointing": training.gradient_checkpointing,
            "compile": training.compile,
            "device": on_gpu_name or f"CPU, {torch.get_num_threads()} threads",
            "parameters": parameters,
            "documents": next((rows.way for rows in padded.every_document_rows(model)), "packed"),
            "padding": None,
        }
        utilization = None
        if dimensions:
            added = added_work(config, bool(job.past), accumulation)
            work = workload(config.objective, _mean_context(job, document_length), document_length, added)
            recompute = training.gradient_checkpointing
            utilization = Utilization.measure(dimensions, work, recompute, device, precision)
        return cls(loop, tokenizer, resources, utilization)

    def report(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Adds the share of padding to the metrics of the loop, and the MFU if the model's dimensions are known.

        The metrics count only real tokens, without padding.
        """
        padding = self.resources["padding"]
        if "tokens_per_s" not in metrics:
            return metrics
        metrics = metrics if padding is None else {**metrics, "padding": padding}
        return self.utilization.added(metrics) if self.utilization else metrics

    def figures(self, progress: Progress) -> dict[str, Any]:
        """Returns the final counts and metrics for the stage's record. All ranks must call this method."""
        peak, own = peak_memory(self.loop.engine.device), progress.own_tokens
        figures = {**asdict(progress), "own_tokens": own, **self.resources, "peak_memory_bytes": peak}
        if self.utilization:
            speed = own / max(progress.seconds, 1e-9)
            done = self.utilization.done_with(self.resources["padding"] or 0.0)
            figures |= {"flops": own * done, "mfu": self.utilization.mfu(speed)}
        return figures


def _mean_context(job: TrainingRun, document_length: float | None) -> float:
    """Returns the mean length of the rows in which tokens attend to each other [tokens].

    With a length ramp, a row counts as at most `document_length`, and the mean is over the tokens of all rows.
    """
    if not job.config.training.length_ramp:
        return job.config.training.sequence_length
    lengths = [(sum(stretch.rows) * stretch.sequence_length, stretch.sequence_length) for stretch in job.stretches]
    tokens = sum(count for count, _ in lengths)
    return sum(count * min(length, document_length or length) for count, length in lengths) / tokens


def _with_padding_told(batches: Iterator[Columns], parts: RankParts, folder: Path) -> Iterator[Columns]:
    """Returns `batches` unchanged. If each row is one document, tells the user the share of padding in the computation.

    The padding is measured on the rank's part of the first global batch, and is also written to the stage's record.
    """
    loop = parts.loop
    rows = next(iter(padded.every_document_rows(loop.engine.model.module)), None)
    if rows and (first := next(batches, None)):
        batch, size, device = Batch.of(first), loop.micro_batch, loop.engine.device
        packed = (
            Packed.of(*part)
            for part in zip(*(each.split(size) for each in (batch.tokens, batch.real, batch.starts)), strict=True)
        )
        padding = rows.padding(each.documents.to(device) for each in packed)
        parts.resources["padding"] = padding.share
        tell(folder, f"{WHY[rows.way]}: {padding}")
        batches = chain([first], batches)
    return batches


def rank_device(local_world: int, trainings: int = 1) -> torch.device:
    """Returns the GPU that Ray Train assigned to this rank, or the CPU if there is none.

    On a CPU, the function also sets torch's number of threads, so that the ranks share the machine's cores.

    Args:
        local_world: number of ranks of this training run on this machine.
        trainings: number of training runs that share the machine.
    """
    if torch.cuda.is_available():
        device: torch.device = get_device()
        return device
    use_threads(shared_by=local_world * trainings)
    return torch.device("cpu")


def method_setting(job: TrainingRun, method: Method, device: torch.device, world: int, precision: str) -> Setting:
    """Builds the method's `Setting`. It contains the length of the run only if the method depends on this length."""
    config, start = job.config, job.pretrained
    kind, options = OBJECTIVES.load(config.objective.kind), objective_options(config)

    def load(folder: Path) -> Any:
        """Loads a model for the run or its method, such as a teacher, with the same attention as in training."""
        place = start if folder == start.model else start.at(folder)
        model = kind.load(place, options, config.model.attention_dropout)
        if sees_only_earlier(config.objective):
            isolation.see_only_earlier(model)
        return model

    carried = start.model.parent / CARRIED
    return Setting(
        seed=config.seed,
        length=job.steps if method.depends_on_length else None,
        past={name: Path(folder) for name, folder in job.past.items()},
        anchor=start.model,
        base=Path(job.base) if job.base else start.model,
        teachers=tuple(map(Path, job.teachers)),
        carried=carried if carried.is_dir() else None,
        number=job.number,
        domain=job.domain,
        texts=tuple(map(Path, job.texts)),
        first_general=job.stretches[0].mixture.first_general if job.stretches else None,
        device=device,
        zero_stage=config.resources.zero_stage,
        world=world,
        precision=precision,
        load=load,
    )


def cut_short_notice(method: Method, kind: str, done: int, steps: int) -> str:
    """Returns a sentence for the user if a streamed text ended early and the method planned for more steps."""
    if done >= steps or not method.depends_on_length:
        return ""
    return (
        f"the text ended at step {done} of {steps}, and method.kind {kind} had planned for all steps, so the result"
        f" differs from that of a training run of {done} steps"
    )


def open_feed(job: TrainingRun, first_step: int, objective: Objective) -> AbstractContextManager[Iterator[Columns]]:
    """Opens the stream of this rank's shares of the global batches, starting at step `first_step`."""
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    if job.online:
        # all ranks read from the server of rank 0
        server = [serve(job.online, first_step, world, partial(tell, Path(job.folder))) if rank == 0 else None]
        dist.broadcast_object_list(server)
        return served(server[0], rank, first_step, job.steps)
    feeds = [
        Feed(
            folders=job.corpora,
            mixture=stretch.mixture,
            sequence_length=stretch.sequence_length,
            global_batch_size=stretch.global_batch_size,
            first_step=max(stretch.first, first_step),
            last_step=stretch.last,
            rank=rank,
            world=world,
            marks=objective.columns(),
            shift=stretch.shift,
        )
        for stretch in job.stretches
        if stretch.last > first_step
    ]
    return _one_after_another(feeds)


@contextmanager
def _one_after_another(feeds: list[Feed]) -> Iterator[Iterator[Columns]]:
    """Yields an iterator over the batches of all feeds. A feed is opened when the previous feed ends."""

    def later() -> Iterator[Columns]:
        for feed in feeds[1:]:
            with streamed(feed) as batches:
                yield from batches

    if not feeds:
        yield iter(())
        return
    with streamed(feeds[0]) as batches:
        yield chain(batches, later())


def _carry(method: Method, folder: Path) -> None:
    """Lets the method write files for the training on the next domain. Removes the folder if there are no files."""
    target = folder / CARRIED
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    method.carry(target)
    if not any(target.iterdir()):
        target.rmdir()


def export_result(
    job: TrainingRun, state: dict[str, torch.Tensor], tokenizer: Any, method: Method, objective: Objective
) -> None:
    """Writes the trained model and its tokenizer to the folder of the run."""
    with folder_aside(Path(job.folder) / MODEL_FOLDER) as aside:
        objective.save(job.pretrained, state, tokenizer, aside, method.resize)

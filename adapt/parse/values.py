"""Checks the ranges of values, and that fields do not contradict each other."""

import re
from dataclasses import asdict, is_dataclass

from adapt.config import Config, CorpusConfig, ResourcesConfig, SourceConfig, fewest_of, most_of, section_of
from adapt.config.fields import check_dataclass, hints_of, read_fields
from adapt.config.job_config import DAPT, Kind
from adapt.objective.table import OBJECTIVES, RTD
from adapt.support.errors import ConfigError


def check_config(config: Config, kind: Kind = DAPT) -> None:
    """Refuses values that have a wrong type or are out of range, and fields that contradict each other.

    Raises:
        ConfigError: a value is wrong. The message names the field.
    """
    kinds = {"method_options": config.method.kind, "objective_options": config.objective.kind}
    names, defaults, hints = {name: section_of(kind) for name, kind in kinds.items()}, vars(Config()), hints_of(Config)
    for name, value in vars(config).items():
        if is_dataclass(value) and value != defaults[name]:
            check_dataclass(value, names.get(name, name))
        elif not is_dataclass(value):
            plain = [asdict(each) for each in value] if isinstance(value, list) else value
            read_fields(hints[name], plain, name)
    refuse_contradictions(config, kind)


def refuse_contradictions(config: Config, kind: Kind) -> None:
    """Refuses fields that contradict each other, empty lists, and lists with duplicate names.

    Raises:
        ConfigError: the configuration contradicts itself. The message names the fields.
    """
    _check_workers(config.resources)
    OBJECTIVES.place(config.objective.kind)
    if config.objective.kind == RTD and kind.not_rtd:
        raise ConfigError(
            f"objective.kind rtd does not work with dontstop {kind.name}, which {kind.not_rtd}",
            "use it with dontstop dapt or tapt (in a chain file, set objective only for these stages)",
        )
    _check_entities(config)
    corpus = config.corpus
    selects = kind.selects and bool(config.select.pool_paths)
    if (kind.corpus and not selects) or corpus.paths or corpus.sources or corpus.dataset:
        if kind.sources:
            check_several(config.corpus)
        _check_sources(config.corpus)
        _check_mixture(config)
        if kind.corpus:  # Other jobs accept the setting, but never stream a corpus.
            _check_streaming(config)
    if kind.task or config.task.train or config.tasks:
        _check_tasks(config, kind)
    if config.corpus.heldout_fraction == 1:
        raise ConfigError("corpus.heldout_fraction 1 leaves nothing to train on", "use a small share such as 0.01")
    if (
        not re.fullmatch(r"[^/\x00-\x1f]+", config.name)
        or not config.name.strip(". ")
        or len(config.name.encode()) > 200
    ):
        raise ConfigError(f"name {config.name!r} cannot be the name of a folder", "use letters, digits, '-' and '_'")


def check_several(corpus: CorpusConfig) -> None:
    """Refuses a corpus that is not given as a list of sources.

    Raises:
        ConfigError: the corpus is not a list of sources. The message says where to write the sources.
    """
    if not corpus.sources:
        raise ConfigError(
            "corpus.sources is empty: dontstop sequence learns one source after another",
            "list the domains in corpus.sources, each as {name: …, paths: …}; for a single corpus use dontstop dapt",
        )


def _check_sources(corpus: CorpusConfig) -> None:
    """Checks that each source has a unique name and the field that its kind needs. Either all or none have weights."""
    if not corpus.sources:
        _check_source("corpus.", corpus)
        return
    for name in ("paths", "dataset"):
        if getattr(corpus, name):
            raise ConfigError(
                f"corpus.{name} and corpus.sources are both set", f"move corpus.{name} into an entry of corpus.sources"
            )
    names = [source.name for source in corpus.sources]
    for source in corpus.sources:
        if not re.fullmatch(r"[\w-]+", source.name):
            raise ConfigError(
                f"corpus.sources: the name {source.name!r} cannot be the name of a folder",
                "use letters, digits, '-' and '_'",
            )
        if names.count(source.name) > 1:
            raise ConfigError(f"two of corpus.sources are called {source.name!r}", "give each source a unique name")
        _check_source(f"corpus.sources, {source.name}: ", source)
    weights = {source.name: source.weight for source in corpus.sources}
    without = [name for name, weight in weights.items() if weight is None]
    if without and len(without) < len(weights):
        raise ConfigError(f"corpus.sources: no weight for {', '.join(without)}", "give every source a weight, or none")
    if not without and not any(weights.values()):
        raise ConfigError("corpus.sources: all weights are 0", "give a source a weight above 0")


def _check_tasks(config: Config, kind: Kind) -> None:
    """Refuses tasks without files or with a name that cannot be a folder's name, and fine-tuning without seeds."""
    first = {"task": config.task} if kind.task or config.task.train else {}
    tasks = {**first, **{f"tasks, entry {n}": task for n, task in enumerate(config.tasks, start=1)}}
    for section, task in tasks.items():
        for split in ("train", "dev", "test"):
            if not getattr(task, split):
                how = f"--task.{split} data/{split}.jsonl" if section == "task" else f"add `{split}: …` to that entry"
                raise ConfigError(f"{section}: {split} is empty", f"name the files of labelled examples: {how}")
        if not re.fullmatch(r"[\w-]+", task.name):
            raise ConfigError(
                f"{section}: the name {task.name!r} cannot be the name of a folder", "use letters, digits, '-' and '_'"
            )
        entity = task.metric == "entity_f1"
        if task.metric and entity != (task.kind == "tokens"):
            raise ConfigError(f"{section}: metric {task.metric} does not suit kind {task.kind}", "leave metric out")
    names = [task.name for task in tasks.values()]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two tasks are called {repeated!r}", "give each task a unique name")
    seeds = config.finetune.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"finetune.seeds is {seeds}: the list is empty or repeats a seed", "list one or more different seeds"
        )
    if not all(0 <= seed < 2**63 for seed in seeds):
        raise ConfigError(f"finetune.seeds is {seeds}: a seed is out of range", "use numbers from 0 to 2^63 - 1")


def _check_mixture(config: Config) -> None:
    """Refuses weights and a temperature for sources that are trained on one after another."""
    if config.mixture.order != "sequential":
        return
    weighted = any(source.weight is not None for source in config.corpus.sources)
    if weighted or config.mixture.temperature != 1:
        raise ConfigError(
            f"{'corpus.sources: weight' if weighted else 'mixture.temperature'} is set, but with mixture.order"
            " sequential, each source is read exactly once",
            "remove it, or set mixture.order to interleaved",
        )


def _check_streaming(config: Config) -> None:
    """Refuses to stream several sources, and to stream if the run's length is unknown or given in epochs."""
    training = config.training
    if not config.corpus.streaming:
        return
    if not (training.max_steps or training.max_tokens or training.max_flops):
        raise ConfigError(
            "corpus.streaming is set, but the length of the run is not",
            "set training.max_steps or training.max_tokens: the schedule of the learning rate needs the length",
        )
    if training.epochs:
        raise ConfigError(
            "training.epochs is set, but a streamed corpus is read only once", "leave training.epochs out"
        )
    if config.corpus.sources or config.mixture.replays:
        replayed = "mixture.replay_paths" if config.mixture.replay_paths else "mixture.replay_kind"
        given = "corpus.sources" if config.corpus.sources else replayed
        raise ConfigError(
            f"{given} is set, but a streamed corpus has one source",
            "name all files in corpus.paths, or remove corpus.streaming",
        )


def _check_source(prefix: str, source: CorpusConfig | SourceConfig) -> None:
    """Refuses a source without the field that its kind needs, such as `paths`, or with the field of another kind."""
    for kind, name in (("files", "paths"), ("dataset", "dataset"), ("docstrings", "packages")):
        if getattr(source, name) and source.source != kind:
            fix = f"remove one of the two, or set source to {kind}"
            raise ConfigError(f"{prefix}{name} is set but {prefix}source is {source.source}", fix)
    if source.source == "files" and not source.paths:
        where = "--corpus.paths 'data/*.jsonl.gz'" if isinstance(source, CorpusConfig) else "`paths: data/*.jsonl.gz`"
        raise ConfigError(f"{prefix}paths is empty", f"name the corpus files: {where}")
    if source.source == "dataset" and not source.dataset:
        where = "--corpus.dataset owner/name" if isinstance(source, CorpusConfig) else "`dataset: owner/name`"
        raise ConfigError(f"{prefix}dataset is empty", f"name a dataset: {where}")


def _check_entities(config: Config) -> None:
    """Refuses an entity objective unless exactly one source of entities is set.

    Refuses a source of entities if another objective is configured.
    """
    objective = config.objective
    given = [name for name in ("entity_field", "tagger") if getattr(objective, name)]
    if objective.kind != "entity" and given:
        raise ConfigError(
            f"objective.{given[0]} is set but objective.kind is {objective.kind}",
            f"set objective.kind to entity, or remove objective.{given[0]}",
        )
    if objective.kind == "entity" and len(given) != 1:
        raise ConfigError(
            f"objective.kind is entity, but {'both' if given else 'neither'} of objective.entity_field and"
            f" objective.tagger {'are' if given else 'is'} set",
            "set objective.entity_field to the field of the corpus that holds entities, or objective.tagger to"
            " module:Class, a tagger that finds them",
        )
    if objective.entity_field and config.corpus.source == "docstrings":
        raise ConfigError("objective.entity_field is set but docstrings have no fields", "set objective.tagger instead")


def _check_workers(resources: ResourcesConfig) -> None:
    """Refuses a range of workers whose minimum is below 1 or above its maximum."""
    fewest, most = fewest_of(resources.workers), most_of(resources.workers)
    if not 1 <= fewest <= most:
        fix = (
            f"write it as [{most}, {fewest}]"
            if 1 <= most < fewest
            else "use a range such as [1, 4], or a single number"
        )
        raise ConfigError(
            f"resources.workers is [{fewest}, {most}], but must be [minimum, maximum] with 1 <= minimum <= maximum", fix
        )

"""Defines the configuration sections for resources and results, and sections that only some jobs use.

The sections that only some jobs use are about evaluation, comparison, advice, merging, vocabulary and search.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from adapt.config.fields import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    OpenFraction,
    PositiveFloat,
    PositiveInt,
    how,
    how_list,
)


@dataclass(frozen=True)
class EvaluationConfig:
    """Measurement of the held-out loss before and after training."""

    general_paths: str | list[str] = how_list()
    """A second corpus, of general text: its loss before and after training shows how much the model forgot. Training
    excludes every document of this corpus. If training also uses one of its files (mixture.replay_paths), only the
    held-out share of this corpus is measured."""
    general_text_field: str = how("text")
    """Field that holds the text of the general corpus."""
    max_documents: PositiveInt = 1000
    """Maximum number of held-out documents measured per corpus (a fixed sample)."""
    max_tokens: PositiveInt = 500_000
    """Maximum number of held-out tokens measured per corpus."""
    sequence_length: PositiveInt = 512
    """Longer documents are measured in pieces of this many tokens."""
    mask_fraction: OpenFraction = 0.15
    """Share of each document's tokens that are masked to measure the held-out loss of an encoder. Single tokens are
    chosen; 80% are replaced by the mask token, 10% by a random token. The masks do not depend on `objective`, so that
    losses of different runs can be compared. Not used with `objective.kind: causal`."""
    bootstrap_samples: PositiveInt = 2000
    """Number of bootstrap resamples for the 95% confidence interval."""
    examples: NonNegativeInt = 5
    """Number of held-out sentences that are shown with the model's predictions for masked tokens, before and after
    training."""
    micro_batch: PositiveInt = how(32)
    """Number of sequences per forward pass on a device. Lower it if memory is short."""
    interval_steps: PositiveInt | None = how(None)
    """Number of steps between two measurements of held-out losses while the model trains. Losses are measured on the
    domain, on general text and, in a sequence, on earlier domains. The masks are the same as before and after training,
    and the precision is that of training. Measuring changes neither weights nor stage keys. Measurements are less
    frequent if they would exceed evaluation.share. null measures only before and after training."""
    share: OpenFraction = how(0.02)
    """Maximum cost of the measurements while the model trains, as a share of the floating point operations of training.
    The share determines how many held-out documents are measured. Only the first evaluation.sequence_length tokens of
    each document are measured."""
    probe: Literal["knn", "linear"] | None = how(None)
    """Also measure, at the steps of evaluation.interval_steps, how well a simple classifier on frozen features of the
    current model (the mean of the last layer's states) solves each task (`task` and `tasks`, except kind tokens).
    `knn`: the 10 nearest train examples vote, as in dontstop evaluate. `linear`: logistic regression. evaluation.share
    limits the number of train and dev examples that are used. Needs evaluation.interval_steps."""


@dataclass(frozen=True)
class ExportConfig:
    """Format and destination of the exported model folder (dontstop dapt, tapt and sequence)."""

    sentence_transformers: Literal["mean", "cls", "none"] | None = None
    """Pooling for sentence embeddings: the `mean` of the last layer's states over all tokens, or the state of the first
    token (`cls`). With a pooling, sentence-transformers can also load the exported folder. null uses the pooling with
    which the objective trained (`tsdae.pooling`), or the pooling of model.path if it is a model of
    sentence-transformers. For other models, null means `none`, unless export.kinds needs a pooling (then `mean`).
    `none` writes no files for sentence-transformers. transformers loads the same folder as a language model."""
    normalize: bool | None = None
    """Let sentence-transformers scale vectors to length 1. null keeps the setting of model.path if it is a model of
    sentence-transformers, and does not scale for other models."""
    max_length: PositiveInt | None = None
    """Length to which sentence-transformers truncates texts [tokens]. null keeps the length of model.path if it is a
    model of sentence-transformers, and uses the model's longest input for other models."""
    kinds: list[str] = field(default_factory=list)
    """Libraries and formats that the folder is prepared for, such as `[onnx, setfit]`: `transformers` (always),
    `sentence_transformers`, `tei` (Text Embeddings Inference), `setfit`, `gliner`, `onnx`, and for decoders `gguf` and
    `vllm` (docs/guide/hand-over.md). Several kinds use the same weight file if they can. `package.module:Class` names
    a kind of your own. Adding a kind repeats the export, but not the training."""
    push: str | None = how(None)
    """Repository of the Hugging Face Hub to which dontstop dapt and tapt send the exported folder: `OWNER/NAME`. The
    token is read from the environment variable HF_TOKEN. null sends nothing. A push that fails does not harm the
    model, and `dontstop push PATH OWNER/NAME` pushes later."""
    private: bool = how(True)
    """Whether a repository that export.push creates is private. An existing repository keeps its visibility."""
    license: str | None = None
    """Licence of the model for its card: an identifier of the Hugging Face Hub, such as `apache-2.0`. null omits the
    licence, because it depends on the initial model and on the text."""
    language: str | list[str] | None = None
    """Language of the model for its card: codes of ISO 639, such as `en`. null omits the language."""


@dataclass(frozen=True)
class RetrievalConfig:
    """Measurement of sentence vectors by retrieval, before and after training (dontstop dapt and tapt).

    For each query, all documents are ranked by the cosine similarity of their vectors to the query's vector. The
    documents are all texts that are relevant to some query, and the texts of `corpus`. Texts are truncated to
    evaluation.sequence_length.
    """

    pairs: str | list[str] = how_list()
    """Files of queries and relevant texts: paths as in corpus.paths, of jsonl, csv, tsv, parquet or Arrow. Rows with
    the same query are one query with several relevant texts. An empty list measures nothing."""
    query_field: str = "query"
    """Field of the pairs that holds the query."""
    positive_field: str = "positive"
    """Field of the pairs that holds the relevant text, or a list of relevant texts."""
    corpus: str | list[str] = how_list()
    """Further documents to search in, which are not relevant to any query: paths as in corpus.paths."""
    corpus_field: str = "text"
    """Field of `corpus` that holds the text."""
    query_prefix: str | None = None
    """Text that is put before each query, for models that expect one, such as `query: `."""
    document_prefix: str | None = None
    """Text that is put before each document."""
    max_queries: PositiveInt = 1000
    """Maximum number of queries measured (a fixed sample)."""
    max_documents: PositiveInt = 10_000
    """Maximum number of documents to search in (a fixed sample that contains all relevant texts of the queries)."""


@dataclass(frozen=True)
class SimilarityConfig:
    """Comparison of domains (dontstop similarity); each of corpus.sources is a domain."""

    models: list[str] = how_list()
    """One adapted model (id or folder) per source, in the order of the sources. If this list is set, the held-out
    losses of every model on the text of every source are also compared. All models must have the tokenizer of
    model.path."""


@dataclass(frozen=True)
class NamedModel:
    """A model to compare, with the name shown in tables."""

    name: str
    """Short name, shown in tables."""
    path: str
    """Hugging Face id or folder of the model."""
    recipe: str | None = None
    """Common name of models that differ only in their seed, such as `dapt`. Standard evaluations (`harness`, `mteb`)
    show the mean score of these models, with intervals over items and seeds. null is for a model that is not one of
    several seeds."""


@dataclass(frozen=True)
class ComparisonConfig:
    """Comparison of models (dontstop evaluate) on the held-out text of each of corpus.sources."""

    models: list[NamedModel] = how_list()
    """Models to compare with model.path: a list of {name, path}. If a model's token ids differ from those of
    model.path's tokenizer, losses are compared per byte of text."""


@dataclass(frozen=True)
class AdviceConfig:
    """Advice on what to run first (dontstop advise)."""

    budget_device_hours: PositiveFloat | None = None
    """Maximum cost of a recommended recipe [device-hours]; null sets no limit."""


@dataclass(frozen=True)
class MergeConfig:
    """Merging of models without training (dontstop merge). The base model is model.path."""

    kind: Literal["interpolate", "average", "task_arithmetic", "ties", "dare", "residual"] = "interpolate"
    """`interpolate` takes a point between the base and one model; `average` takes the mean of several models, such as
    the checkpoints of a run; `task_arithmetic`, `ties` and `dare` add to the base the weight differences of several
    models from the base; `residual` takes two models, an adapted base and an instruct model, and adds the weight
    difference between the instruct model and the base to the adapted base (docs/guide/merging.md)."""
    models: list[str] = how_list()
    """Ids or folders of models with the base's architecture and vocabulary; in a chain file also names of stages, such
    as `dapt[cs]`. `average` also takes checkpoints of training runs (…/checkpoints/…/step-…)."""
    shares: list[float] | None = None
    """Positions on the line from the base (0) to the full merge (1); one model is written per position. For `residual`,
    position 0 is the first model. null is 0.5 for `interpolate`, 0.4 for `task_arithmetic` and `dare`, else 1."""
    weights: list[float] | Literal["linear", "cosine", "sqrt"] | None = None
    """Weight of each model; null gives all models equal weights. `task_arithmetic` and `dare` multiply each model's
    difference by its weight; `ties` and `average` also divide by the sum of the weights. For `average` over the
    checkpoints of a run, listed oldest first, `linear`, `cosine` and `sqrt` set the weights that imitate a learning
    rate decay of this shape. Equal weights also imitate a linear decay."""
    density: Fraction | None = None
    """Share of each model's differences from the base that is kept. `ties` keeps the largest differences (null is 0.2).
    `dare` keeps random differences, drawn with `seed` (null is 0.1)."""
    extrapolate: bool = False
    """Allow shares below 0 or above 1."""


@dataclass(frozen=True)
class EnsembleConfig:
    """Averages predictions of several models (dontstop ensemble), such as models that differ only in their seed."""

    models: list[str] = how_list()
    """Ids or folders of the two or more models to average; in a chain file also names of stages, such as `dapt[0]`. All
    models must have the tokenizer of model.path. Their predicted probabilities are averaged."""


@dataclass(frozen=True)
class VocabularyConfig:
    """Fits the vocabulary to a domain (dontstop vocabulary). The words of the domain are read from the corpus."""

    action: Literal["analyze", "extend", "trim", "scratch"] = how("analyze")
    """`analyze` measures how the tokenizer splits the domain's words and how many tokens new words would save; `extend`
    adds some of the words to model and tokenizer; `trim` removes the tokens that neither the corpus nor general text
    (evaluation.general_paths) uses; `scratch` trains a tokenizer of model.path's kind on the corpus and makes a model
    with random weights. On the command line, the first word after dontstop vocabulary sets this field."""
    size: PositiveInt | Literal["elbow"] | None = None
    """`extend`: number of new tokens. `elbow` stops when the next token would save less than the mean over all
    candidates; null is 1% of the vocabulary. `scratch`: maximum vocabulary size of the new tokenizer; null is the
    vocabulary size of model.path's tokenizer."""
    candidates: str = "saved"
    """`extend`: which words become tokens first. `saved`: the words that save the most tokens. A word saves frequency x
    (number of pieces - 1) tokens. `divergence`: beginnings of words whose last piece follows the earlier pieces more
    often than in general text (evaluation.general_paths; arXiv 2109.07460). `trained`: pieces of a tokenizer of the
    same kind, trained on the corpus. Any other value is the path of a file with one word per line, all of which become
    tokens."""
    init: Literal["mean_subword", "normal", "zero_logit", "distill", "omp"] = "mean_subword"
    """`extend`: initial embedding rows of new tokens. `mean_subword`: the mean of their old pieces' rows. `normal`:
    random, with the mean and deviation of all rows. `zero_logit`: the mean in the embeddings and zeros in the head, so
    that the first logits of new tokens are 0; zeros in both if they share a table. `distill`: starts from the mean,
    then trains the rows so that the hidden states of the text around a new token come close to those with the old
    pieces (arXiv 2505.20133). `omp`: expresses the donor's row of each new token as a sparse sum of rows of shared
    tokens, and computes the same sum from the model's rows (arXiv 2506.06607)."""
    module: Literal["exbert"] | None = None
    """`extend`: a module to add to the model, in addition to the new rows. `exbert` adds a smaller layer next to each
    layer of an encoder, and a gate that weighs the two layers for each token (2020.findings-emnlp.129); the method
    freeze trains only this module with freeze.all_but_module. null adds none."""
    module_share: OpenFraction = 1 / 3
    """`exbert`: size of the added layers: number of attention heads and of feed-forward neurons, as a share of the
    numbers in the model's own layers; at least one head."""
    donor: str | None = how(None)
    """`omp`: id or folder of a model whose vocabulary contains the domain's words."""
    snippets: PositiveInt = 100
    """`distill`: maximum number of text snippets from the corpus to learn from, per new token."""
    warmup_steps: NonNegativeInt = 0
    """`extend`: number of optimizer steps at the end of the stage, in which only the input and output rows of new
    tokens are trained. Each step uses 16 rows of text of at most 128 tokens. 0 omits these steps."""
    learning_rate: PositiveFloat = 1e-4
    """AdamW learning rate of `distill` and of the `warmup_steps`."""
    min_count: PositiveInt = 5
    """Minimum number of occurrences in the corpus for a word to become a token."""
    max_megabytes: PositiveFloat = 200.0
    """Amount of text that is sampled from the whole corpus to count words in memory [MB of UTF-8]."""
    keep: str | None = how(None)
    """`trim`: path of a text file. All tokens of its text are kept, even if the corpus does not use them."""
    dimensions: Literal["tiny", "mini", "small", "medium", "base"] | None = None
    """`scratch`: number of layers x hidden size of the model: `tiny` 2 x 128, `mini` 4 x 256, `small` 4 x 512, `medium`
    8 x 512, `base` 12 x 768; null uses the dimensions of model.path."""


SHARE = 0.01
"""Number of new tokens as a share of the vocabulary, if no size is configured."""


def tokens_wanted(size: int | None, vocabulary: int) -> int:
    """Returns the number of tokens to add, for a configured number or the default of 1% of the vocabulary.

    Args:
        size: `vocabulary.size`: a number, or None for the default.
        vocabulary: number of tokens of the current vocabulary.
    """
    return max(1, round(SHARE * vocabulary)) if size is None else size


@dataclass(frozen=True)
class BoundConfig:
    """Condition that the best trial of a search must meet: a limit on a metric that is not an objective."""

    metric: str
    """Name of a metric in the job's result, as in tune.objectives."""
    limit: float
    """Maximum allowed value of the metric, in the metric's unit (losses are in nats per token). If higher values of the
    metric are better, it is the minimum allowed value."""


@dataclass(frozen=True)
class TuneConfig:
    """Search for good values of fields; trials are compared on the dev split (docs/guide/sweeps.md)."""

    job: str | None = None
    """Job whose fields are searched, such as `tapt`; null uses the job with the name of the space's file."""
    space: str | None = None
    """File that lists the fields to search and their ranges: `tune_spaces/tapt.py`, or YAML."""
    searcher: Literal["random", "grid", "tpe"] = "random"
    """How values are proposed: `random` draws them, `grid` tries all combinations of listed values, `tpe` learns from
    earlier trials (Optuna's tree-structured Parzen estimator; needs the extra `dontstop[optuna]`)."""
    scheduler: Literal["none", "asha", "median"] = "none"
    """Which trials are continued. `none`: all. `asha` (asynchronous successive halving) and `median` measure a trial
    after a part of training.max_steps. `asha` continues it if it is among the best, `median` if it is above the median.
    Both need training.schedule wsd with training.warmup_steps. Population-based training is not supported, because it
    changes values while a model trains, so its result is not one set of values (docs/guide/sweeps.md)."""
    turns: PositiveInt = 3
    """`asha` and `median`: number of times that a trial is measured. The last time is after training.max_steps."""
    reduction: PositiveInt = 3
    """`asha` and `median`: factor between the lengths of a trial at successive measurements. `asha` continues the best
    1 / reduction of the trials."""
    samples: PositiveInt = 16
    """Number of trials, not counting the unchanged configuration. For `grid`, the maximum number of combinations."""
    objectives: list[str] = field(default_factory=lambda: ["dev_score"])
    """Metrics to optimize: `dev_score`, the mean over all tasks and fine-tuning seeds, or names of metrics in the job's
    result, such as losses.domain.after. If several are listed, the first one decides which trial is best."""
    seed: NonNegativeInt = 0
    """Seed of the proposals."""
    at_once: PositiveInt = how(4)
    """Number of trials that run at the same time. For each proposal, `tpe` ignores the at_once - 1 latest trials, which
    may still be running, so its proposals depend on this number but not on timing."""
    fresh_seeds: list[int] = field(default_factory=lambda: [1001, 1002, 1003, 1004, 1005])
    """The best trial and the unchanged configuration are repeated with these seeds, and only these repeats use the test
    split. An empty list skips the repeats."""
    finalists: PositiveInt = 3
    """Number of trials that also run with finalist_seeds. They are the best trials by the first objective."""
    finalist_seeds: list[int] = field(default_factory=list)
    """More fine-tuning seeds for the finalists. The best trial is then the finalist with the best mean on dev over
    finetune.seeds and these seeds. An empty list chooses the best of all trials by finetune.seeds."""
    budget_device_hours: PositiveFloat | None = None
    """Budget of all trials together [device-hours]; a trial that is expected to exceed it is not started. null sets no
    limit."""
    bound: BoundConfig | None = None
    """Condition that the best trial must meet, such as `{metric: losses.general.change, limit: 0.05}`. The best trial
    is the trial with the best first objective among the trials that meet the condition. null sets no condition. Needs
    scheduler none."""


Workers: TypeAlias = int | tuple[int, int]
"""Number of training processes, or the minimum and maximum if the number may change during a training run."""


def fewest_of(workers: Workers) -> int:
    """Returns the minimum number of workers: the lower end of the range, or the number if it is fixed."""
    return workers if isinstance(workers, int) else workers[0]


def most_of(workers: Workers) -> int:
    """Returns the maximum number of workers: the upper end of the range, or the number if it is fixed."""
    return workers if isinstance(workers, int) else workers[1]


@dataclass(frozen=True)
class BudgetConfig:
    """Maximum device time and cost of a job or chain, over all its stages and runs."""

    device_hours: PositiveFloat | None = None
    """Maximum device time [device-hours]; null sets no limit."""
    cost: PositiveFloat | None = None
    """Maximum cost, in the currency of resources.price_per_device_hour; null sets no limit."""


@dataclass(frozen=True)
class ResourcesConfig:
    """Where the work runs, and on how many devices."""

    address: str | None = None
    """Address of a Ray cluster; null uses the environment variable RAY_ADDRESS, or else starts Ray on this machine."""
    workers: PositiveInt | tuple[int, int] = 1
    """Number of training processes, one per device, or a range [minimum, maximum]: training starts with as many
    processes as fit, continues with fewer when a node is lost, and with more when a node joins. Numbers that do not
    divide training.global_batch_size are skipped."""
    cpus_per_worker: PositiveFloat = 1.0
    """CPU cores reserved by each training process."""
    trainings_per_machine: PositiveInt | None = None
    """Number of training runs that share the CPUs of a machine. Each run gets an equal share of the cores; small models
    train faster in parallel. null is 1, so that a run uses all cores. In a search on one machine, null is tune.at_once
    if there is a core for each worker and enough memory."""
    gpus_per_worker: NonNegativeFloat | None = None
    """GPUs reserved by each training process; null is 1 if the cluster has GPUs at the start, else 0. Set this field on
    an autoscaling cluster that adds GPU nodes on demand."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage: what is sharded over the workers (1: optimizer state, 2: also gradients, 3: also
    parameters)."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What is stored in the machine's memory instead of GPU memory: nothing (`none`), the optimizer state (`optimizer`,
    ZeRO 2 and 3), or also the parameters (`all`, ZeRO 3)."""
    device_memory_gib: PositiveFloat | None = None
    """Memory of one device [GiB], to check that the run fits; null uses the memory of the cluster's devices."""
    price_per_device_hour: NonNegativeFloat | None = None
    """Price of one device per hour, in any currency, shown in plans and records."""
    budget: BudgetConfig | None = None
    """Maximum device time [device-hours] or maximum cost of the whole job or chain, such as `{device_hours: 2}` or
    `{cost: 30}`; null sets no limit. All stages count, including finished ones. At the limit, training runs save a
    checkpoint and the job ends with exit code 9. Run the same command with a larger budget to continue from the
    checkpoint. The cost of a search's trials is added when the search ends; tune.budget_device_hours limits this
    cost."""
    max_failures: NonNegativeInt = 3
    """Number of times that a training run restarts from its last checkpoint after a worker crashed, before the run
    fails. Node preemptions do not count."""
    stall_s: PositiveFloat | None = None
    """Time without progress after which a worker counts as stalled, for example because a signal has stopped it or a
    collective waits for a lost message [s]. The log shows the worker's Python stack, and the work restarts from the
    last checkpoint. null is 5 times the slowest step so far, at least 30 s (300 s with training.compile). The first
    start of a job on a host, including its first step, may take 30 minutes; a later start may take 5 times as long as
    the slowest start so far. Evaluations, checkpoints and the export may take 30 minutes. A process that a signal has
    stopped is killed after 30 s in any phase. In stages that do not train, a Ray task is killed and repeated when a
    call takes 10 times as long as the slowest call so far, but not before `stall_s` (null: 30 minutes)."""
    max_stalls: NonNegativeInt = 3
    """Number of times that a training run restarts because workers stalled, before the run fails. Stalls do not count
    as failures."""
    max_idle_restarts: PositiveInt = 5
    """Number of consecutive restarts, for any reason, without a new checkpoint in between; one more restart ends the
    training run. The wait before such a restart doubles from 2 to at most 60 seconds."""
    stages_at_once: PositiveInt | None = None
    """Maximum number of independent stages of a chain that run at the same time; null is as many as fit on this
    machine. On a cluster, null is 16, and the cluster delays their tasks until resources are free."""
    wait_s: NonNegativeFloat = 300.0
    """Time to wait for an autoscaling cluster to provide the requested resources [s]."""

    @property
    def trainings(self) -> int:
        """Number of training runs that share the CPUs of a machine."""
        return self.trainings_per_machine or 1


@dataclass(frozen=True)
class StorageConfig:
    """Where results are stored."""

    root: str = "runs"
    """Folder of all stages, their outputs and records, or a prefix in an S3 bucket: `s3://BUCKET/PREFIX`. On a cluster,
    all nodes must mount the folder, or reach the bucket."""
    cache: str = "~/.cache"
    """Folder for the local copy of a bucket, on a large and fast disk. On a cluster, each node has its own local copy
    at this path."""
    cache_gb: PositiveFloat | None = None
    """Maximum size of the local copy [GB]; null is 80% of the disk. Above it, files of finished stages are removed from
    the local copy, least recently used first."""


@dataclass(frozen=True)
class TrackingConfig:
    """Experiment trackers. TensorBoard files are always written, in the training stage's folder."""

    mlflow_uri: str | None = None
    """MLflow tracking server or folder; null uses no MLflow. Needs the extra `dontstop[mlflow]`."""
    wandb_project: str | None = None
    """Weights & Biases project; null uses no Weights & Biases. Needs the extra `dontstop[wandb]` and WANDB_API_KEY
    set."""


Event: TypeAlias = Literal["finish", "failure", "stall", "budget"]
"""Reason for a message to a webhook."""


@dataclass(frozen=True)
class NotifyConfig:
    """Messages to a webhook, for example of Slack, when a job, a chain or a search ends.

    A job does not wait for the receiver of the messages, and does not fail if a message cannot be sent.
    """

    webhook: str | None = None
    """Name of the environment variable with the webhook's address, such as DONTSTOP_WEBHOOK. The address itself is a
    secret and must not be in a configuration. null sends no messages. On a cluster, the variable must be set where
    the job's driver runs."""
    form: Literal["json", "slack"] = "json"
    """Format of a message. `json`: an object with event, about, text, host, time, seconds and path. `slack`: an object
    with one field `text`, for Slack and compatible services."""
    events: list[Event] = field(default_factory=lambda: ["finish", "failure", "stall", "budget"])
    """Events that send a message. `finish`: a job, chain or search succeeded. `failure`: a job, chain or search failed
    or was stopped. `stall`: a training run made no progress, so its workers restart. `budget`: resources.budget is
    spent."""

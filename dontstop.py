"""dontstop adapts language models to domains and tasks without making them forget. See `help(dontstop.dapt)`."""

from adapt import __version__
from adapt.api import (
    ChainStudy,
    Run,
    advise,
    chain,
    dapt,
    distil,
    ensemble,
    evaluate,
    finetune,
    merge,
    plan,
    select,
    sequence,
    similarity,
    tapt,
    tune,
    vocabulary,
)
from adapt.config import Config
from adapt.job.job_run import Plan
from adapt.support.errors import AdaptError

__all__ = [
    "AdaptError",
    "ChainStudy",
    "Config",
    "Plan",
    "Run",
    "__version__",
    "advise",
    "chain",
    "dapt",
    "distil",
    "ensemble",
    "evaluate",
    "finetune",
    "merge",
    "plan",
    "select",
    "sequence",
    "similarity",
    "tapt",
    "tune",
    "vocabulary",
]

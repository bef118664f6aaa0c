"""Builds cases for tests of the rules that advise on recipes. A case is a configuration with evidence.

The default case meets only the conditions of the rules `tapt_gains` and `both_are_best`.
"""

from dataclasses import replace
from typing import Any

from adapt.advise.evidence import (
    AS_IT_IS,
    BOTH,
    DAPT,
    TAPT,
    CostAhead,
    Costs,
    Evidence,
    ModelFacts,
    TaskEvidence,
    TextEvidence,
)
from adapt.advise.findings import Case
from adapt.config import Config, FinetuneConfig, MixtureConfig

CORPUS = TextEvidence(20_000, 20_000_000, 5_000_000, True, 2000, fertility=1.1, loss=2.0)
TASK = TaskEvidence("toy", 4000, 200_000, 3, 500, 900, 0, 1.1, 2.0, None, None)


def cost(flops: float, hours: float | None = None) -> CostAhead:
    return CostAhead(int(flops), flops, hours, None)


RECIPES = {AS_IT_IS: cost(1e3, 1), TAPT: cost(2e3, 2), DAPT: cost(3e3, 3), BOTH: cost(4e3, 4)}


def case(
    recipes: dict[str, CostAhead] = RECIPES,
    config: Config | None = None,
    whole_pool: CostAhead | None = None,
    model: ModelFacts | None = None,
    **evidence: Any,
) -> Case:
    config = config or Config(finetune=FinetuneConfig(seeds=list(range(10))), mixture=MixtureConfig(replay_paths="g"))
    values = {"tasks": [TASK], "corpus": CORPUS, **evidence}
    return Case(config, Evidence(**values), Costs(recipes, whole_pool=whole_pool), model or ModelFacts())


def task(**values: Any) -> TaskEvidence:
    return replace(TASK, **values)


def text(**values: Any) -> TextEvidence:
    return replace(CORPUS, **values)

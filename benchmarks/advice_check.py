"""Prints whether the advice of dontstop advise is right, by the verdicts of a sequential study of the same tasks.

Each recipe with votes for it should be better than fine-tuning the unadapted model. Each recipe with votes against it
should not be better. The study asks for the advice itself, in its stage `advise`.

python -m benchmarks.advice_check benchmarks/study_advice.yaml [options of benchmarks.sequential, as when the study ran]
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Literal

from adapt.advise.advice import Advice
from adapt.chain.chain_file import read_chain, read_command
from adapt.chain.chain_stages import Chain, study
from adapt.chain.sequential_study import built_chain, study_nodes
from adapt.job.measuring_jobs import ADVISE_JOB, advice
from adapt.runner import Finished
from adapt.show.blocks import NONE, Cell, Section, Table, worded_interval
from adapt.show.renderers import render_markdown
from adapt.stage.context import Context
from adapt.stage.model_evaluation import Look
from adapt.statistics.comparison import points
from adapt.statistics.seeds import Conclusion, Ending, endings
from benchmarks.sequential import smaller, split_options

Check = Literal["confirmed", "contradicted", "undecided"]


def checked(votes: int, conclusion: Conclusion) -> Check:
    """Returns whether a study's verdict on a recipe confirms the advice.

    A recipe without a difference that matters is a waste of compute, so this verdict contradicts votes for the recipe.

    Args:
        votes: votes for the recipe minus votes against it. Not 0.
        conclusion: how the recipe's comparison with the unadapted model has ended.
    """
    if conclusion == "open":
        return "undecided"
    return "confirmed" if (votes > 0) == (conclusion == "better") else "contradicted"


def advice_table(advised: Mapping[str, Advice], ended: Mapping[tuple[str, str], Ending]) -> Table:
    """Makes the table with a row per task and recipe that has votes for or against it.

    Args:
        advised: the advice on each task.
        ended: the latest look at each comparison, keyed by task and recipe.
    """
    rows: list[list[Cell | str]] = []
    for task, given in advised.items():
        for rank, recipe in enumerate(given.recipes, 1):
            ending = ended.get((task, recipe.name))
            if recipe.votes and ending:
                seen = ending.seen
                rows.append(
                    [
                        task,
                        recipe.name,
                        f"{rank}",
                        f"{recipe.votes:+d}",
                        points(seen.difference),
                        worded_interval(seen.low, seen.high, points) or NONE,
                        f"{ending.seeds}",
                        Cell(checked(recipe.votes, seen.conclusion), strong=seen.conclusion != "open"),
                    ]
                )
    header = ["task", "recipe", "rank", "votes", "gain in points", "repeated 95% interval", "seeds", "advice is"]
    margin = next((points(ending.looked.margin).removeprefix("+") for ending in ended.values()), NONE)
    note = (
        "Votes for a recipe are confirmed if the recipe is better than fine-tuning the unadapted model, and"
        f" contradicted if it is worse or if no difference matters (margin {margin}). For votes against a recipe, it is"
        " the reverse."
    )
    return Table(header, rows, "Advice against results", note)


def all_advice(chain: Chain) -> Iterator[tuple[str, Advice]]:
    """Yields each task with the advice on it, from the finished stages of the job advise."""
    for goal in chain.goals:
        record = chain.store.record_of(goal.stage)
        if isinstance(goal.stage, Look) and record:
            context = Context.of(goal.config, kind=ADVISE_JOB.kind)
            yield goal.config.task.name, advice(context, Finished.of(goal.stage, record), [])


def main() -> None:
    options, arguments = split_options(sys.argv[1:])
    command = read_command(["report", *arguments])
    file = smaller(read_chain(command.file, command.let, command.common), options)
    chain = built_chain(study_nodes(file, command.only), file.baseline, file.margin, file.rounds)
    found, advised = study(file.name, file.baseline, chain, file.margin), dict(all_advice(chain))
    if not advised or not found.looks:
        raise SystemExit(f"{command.file} has no finished look or no advice yet: run it with benchmarks.sequential")
    ended = {(row, recipe): ending for (row, _, recipe), ending in endings(found.looks).items()}
    about = f"{len(found.entries)} results, {len(found.missing)} missing"
    first = Table(
        ["task", "run first", "votes"],
        [[task, given.recipes[0].name, f"{given.recipes[0].votes:+d}"] for task, given in advised.items()],
        "First recommendations",
    )
    print(render_markdown(file.name, about, [Section("Advice", [first, advice_table(advised, ended)])]))


if __name__ == "__main__":
    main()

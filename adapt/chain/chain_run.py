"""Defines `ChainRun`. Its methods plan and run a chain of stages, and show its progress and its report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.chain.chain_file import ChainFile, read_chain
from adapt.chain.chain_stages import Chain, ahead, check_chain, regimes_ahead, study, trainings_ahead
from adapt.chain.sequential_study import built_chain, looks_without_differences, study_nodes
from adapt.job.job_run import run_stages
from adapt.job.job_text import outlook_blocks, text_outlooks
from adapt.runner import mirror, notifications
from adapt.runner.ensure import unfinished
from adapt.runner.stage import everything
from adapt.show.blocks import Block, Section, TextBlock, first_sentence, summary
from adapt.show.progress.chain_now import ChainNow, StudyNow, chain_now
from adapt.show.progress.goals import goal_states, goals_table, trainings_table
from adapt.show.renderers import SelfShown, render_text
from adapt.show.report.study import HTML, Study
from adapt.stage.budget import budget_outlook, exceeds_budget, within_budget
from adapt.stage.push_model import Push
from adapt.support.errors import AdaptError
from adapt.terminal.console import log
from adapt.tuning.search_run import SearchAhead, check_search


@dataclass(frozen=True)
class ChainPlan(SelfShown):
    """Result of `ChainRun.plan`: what a chain would run, and its cost. `print(plan)` shows it."""

    states: Mapping[str, int]
    """Number of goals (stages with the chain's final results) in each state: finished, running, waiting."""
    to_run: Mapping[str, int]
    """Number of stages to run, keyed by kind of stage, such as `train`."""
    later: Sequence[str]
    """Labels of goals whose stages are only known after searches have finished."""
    tables: Sequence[Block]
    budget: str = ""
    """Comparison of the expected device time with `resources.budget`, in sentences. Empty without a budget."""
    sequential: StudyNow | None = None
    """Current round, comparisons and remaining cost of a sequential study. None for other chains."""

    def blocks(self) -> list[Block]:
        """Shows how many stages will run, the budget, the goals, and the unfinished searches and training runs."""
        study = self.sequential.blocks() if self.sequential else []
        return [*summary(*ahead_lines(self.to_run, len(self.later)), self.budget), *self.tables, *study]


@dataclass(frozen=True)
class Report(SelfShown):
    """The report of a chain: the path of its HTML page, and its sections as blocks."""

    path: Path
    """Path of `report.html`, a self-contained file; `report.md` next to it contains the text and the tables."""
    study: Study
    sections: Sequence[Section]

    def blocks(self) -> list[Block]:
        """Returns the blocks of all sections, each below its title."""
        return [block for section in self.sections for block in (TextBlock(f"{section.title}:"), *section.blocks)]

    def first_blocks(self) -> list[Block]:
        """Returns the blocks of the section `Verdict`, and a line with the report's path."""
        verdict = next((section for section in self.sections if section.title == "Verdict"), None)
        return [*(verdict.blocks if verdict else []), TextBlock(f"Report: {self.path}")]

    def __str__(self) -> str:
        return render_text(self.first_blocks())


@dataclass(frozen=True)
class ChainRun:
    """Plans, runs and reports a chain file, with values for its variables and a choice of the members to run."""

    file: ChainFile
    only: Mapping[str, list[str]] = field(default_factory=dict)
    """Members to run, keyed by the name of their set. If this is empty, all members run."""

    @classmethod
    def of(
        cls,
        file: str,
        let: Mapping[str, Any],
        fields: Mapping[str, Any],
        only: Mapping[str, list[str]] | None = None,
    ) -> "ChainRun":
        """Reads a chain file.

        Args:
            file: path of the chain file.
            let: values of variables, which replace the values in the section `let` of the file.
            fields: configuration fields for all stages, by dotted name.
            only: members to run, keyed by the name of their set.

        Raises:
            ConfigError: the file cannot be read, or its content is wrong.
        """
        return cls(read_chain(file, dict(let), dict(fields)), only or {})

    def build(self) -> Chain:
        """Builds the stages that can be built now. Stages that depend on an unfinished search cannot be built yet."""
        return self._built(self.only)

    def _built(self, only: Mapping[str, list[str]] | None = None) -> Chain:
        file = self.file
        return built_chain(study_nodes(file, only), file.baseline, file.margin, file.rounds)

    def plan(self) -> ChainPlan:
        """Returns the stages that would run, and their costs, without running anything."""
        chain = self.build()
        check_chain(chain)
        tables: list[Block] = [goals_table(chain.goals, chain.store)]
        for search in chain.searches:
            tables += SearchAhead.of(search, chain.store).blocks()
        tables += [table for table in [trainings_table(trainings_ahead(chain))] if table]
        goals = [goal.stage for goal in chain.goals]
        tables += outlook_blocks(text_outlooks(unfinished(goals, chain.store)[0], {}))
        tables += regimes_ahead(chain)
        if self.file.rounds:
            nodes = study_nodes(self.file, self.only)
            tables += map(TextBlock, looks_without_differences(nodes, self.file.baseline, self.file.rounds))
        outlook = budget_outlook(chain.resources, goals, chain.store)
        states = goal_states(chain.goals, chain.store)
        return ChainPlan(states, ahead(chain), chain.later, tables, outlook, chain.sequential)

    def run(self) -> Report:
        """Runs all unfinished stages, in parallel where possible, and writes the report.

        Raises:
            AdaptError: a stage failed. Before the error is raised, the report of all finished stages is written.
        """
        chain = self.build()
        check_searches(chain)
        will_run = bool(ahead(chain))
        with notifications.notifying(chain.notify, f"chain {self.file.name}") as finished:
            try:
                self.finish()
            except BaseException:
                try:
                    self.report()
                except Exception as error:  # the error of the stages is more important
                    what = error.what if isinstance(error, AdaptError) else repr(error)
                    log(f"warning: the report could not be written: {what}")
                raise
            report = self.report()
            if will_run:
                finished(first_sentence(report.first_blocks()), report.path)
        return report

    def finish(self) -> Chain:
        """Runs all unfinished stages. Stages that use the best values of a search run after that search.

        In a sequential study, a round of seeds starts after the interim analyses of the previous round. A round after
        the first does not start if its forecast exceeds `resources.budget`. In this case, only the finished models are
        pushed to the Hugging Face Hub.
        """
        while True:
            chain = self.build()
            check_searches(chain)
            if chain.pushes:
                check_chain(chain)
            whole = self._built() if chain.resources.budget and self.only else chain
            stages = [goal.stage for goal in whole.goals]
            if chain.sequential and ahead(chain):
                log(chain.sequential.sentence())
                if (chain.sequential.next_look or 1) > 1 and exceeds_budget(chain.resources, stages, chain.store):
                    log(
                        "The next round of seeds would exceed resources.budget, so the study ends here. Raise"
                        " resources.budget to continue the study."
                    )
                    if ready := ready_pushes(chain):
                        run_stages(ready, chain.store, chain.resources)
                    return chain
            with within_budget(chain.resources, stages, chain.store) as store:
                run_stages([goal.stage for goal in chain.goals], store, chain.resources)
            if not chain.later and not (chain.sequential and ahead(self.build())):
                run_stages(chain.pushes, chain.store, chain.resources)
                return chain

    def status(self) -> ChainNow:
        """Returns the progress of the chain, even if another process or machine runs the chain."""
        return progress_of(self.build())

    def report(self) -> Report:
        """Writes the report of all finished stages, including members of sets that `only` leaves out.

        If stages that `only` leaves out cannot be built, for example because their files do not exist yet, the report
        has no results of these stages.
        """
        from adapt.show.report.report_page import write_report

        try:
            chain = self._built()
        except AdaptError as error:
            if not self.only:
                raise
            chain = self.build()
            log(f"The report only has what --only selects, because other stages cannot be built: {error.what}")
        chain.store.follow(everything(goal.stage for goal in chain.goals))
        found = study(self.file.name, self.file.baseline, chain, self.file.margin)
        folder = chain.store.root / "reports" / self.file.name
        sections = write_report(found, folder)
        mirror.upload_results(folder)
        return Report(folder / HTML, found, sections)


def progress_of(chain: Chain) -> ChainNow:
    """Reads the progress of a chain, which another process or machine may run."""
    chain.store.follow(everything(goal.stage for goal in chain.goals))
    return chain_now(chain.goals, chain.store, trainings_ahead(chain), chain.later, chain.sequential)


def ready_pushes(chain: Chain) -> list[Push]:
    """Returns the stages that push finished models to the Hub. Logs a message for each model that is not finished."""
    ready = [push for push in chain.pushes if chain.store.record_of(push.export)]
    for push in chain.pushes:
        if push not in ready:
            log(
                f"Nothing is pushed to {push.repository}, because {push.export.name} is not finished. Raise"
                " resources.budget to finish it."
            )
    return ready


def check_searches(chain: Chain) -> None:
    """Checks that the unfinished searches can run."""
    for search in chain.searches:
        check_search(search, chain.store)


def ahead_lines(counts: Mapping[str, int], later: int = 0) -> list[str]:
    """Returns sentences with the number of stages of each kind that will run.

    Args:
        counts: number of stages, keyed by kind of stage.
        later: number of goals whose stages are only known when searches have finished.
    """
    to_run = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    number = sum(counts.values())
    stages = "1 stage" if number == 1 else f"{number} stages"
    lines = [f"{stages} will run: {to_run}." if counts else "All stages are finished."]
    if later:
        lines.append(f"Further results that need the best values of the searches: {later}.")
    return lines

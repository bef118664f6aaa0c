"""A made-up study of learning rates and shares: which models are collected, and what is said of them."""

from pathlib import Path

import pytest

from adapt.runner.record import Record
from adapt.show.blocks import Folded, Table
from adapt.show.report.entry import Entry, Study
from adapt.show.report.tradeoffs.front import FEWEST
from adapt.show.report.tradeoffs.points import BASE, tradeoffs
from adapt.show.report.tradeoffs.section import tradeoff_section, tradeoff_verdicts
from adapt.show.report.write import write_report
from tests.show.report.fake import Fake, finished

BEFORE = 3.0, 2.0
ENDS = {"1e-4": (2.0, 2.3), "5e-4": (1.8, 3.0)}
BETWEEN = {("1e-4", "0.5"): (2.2, 2.02), ("5e-4", "0.5"): (2.1, 2.4)}


class Forgetting(Fake):
    """Two trainings on one domain, and a model between the base and each."""

    def study(self) -> Study:
        entries = []
        for rate, after in ENDS.items():
            made = self.adapted(rate, after)
            entries.append(Entry("dapt", "dapt", {"rate": rate}, finished(made)))
            entries += [
                Entry(
                    "measured",
                    "evaluate",
                    {"rate": rate, "share": share},
                    finished(self.between(rate, share, made, losses)),
                )
                for (of, share), losses in BETWEEN.items()
                if of == rate
            ]
        return Study("forgetting", "dapt", entries)

    def adapted(self, rate: str, after: tuple[float, float]) -> Record:
        losses = (BEFORE[0], after[0], BEFORE[1], after[1])
        made = self.export("mine", 0.5, losses, 2.0)  # names its texts
        train = self.record("train", rate, cost={"device_hours": 0.5})
        return self.record("export", rate, {**self.inputs_of(made), "training": train}, metrics=made.metrics)

    def inputs_of(self, made: Record) -> dict[str, Record]:
        return {name: self.corpus("mine" if name == "domain" else "general") for name in ("domain", "general")}

    def between(self, rate: str, share: str, export: Record, losses: tuple[float, float]) -> Record:
        training = self.training(export)
        merged = self.record("merge", f"{rate}-{share}", {"models.0.training": training})
        texts = {f"corpora.{name}": self.corpus("mine" if name == "domain" else name) for name in ("domain", "general")}
        base = self.record("evaluate", "base", texts)
        looked = self.record("evaluate", f"{rate}-{share}", {**texts, "start.training": merged})
        changes = [after - before for after, before in zip(losses, BEFORE, strict=True)]
        metrics = {
            "models": ["base", "mixed"],
            "domains": ["domain", "general"],
            "loss": [list(BEFORE), list(losses)],
            "loss_low": [[1.0, 1.0]] * 2,
            "loss_high": [[4.0, 4.0]] * 2,
            "change": [[0.0, 0.0], changes],
            "change_low": [[0.0, 0.0], [change - 0.03 for change in changes]],
            "change_high": [[0.0, 0.0], [change + 0.03 for change in changes]],
        }
        inputs = {"models.base.losses": base, "models.mixed.losses": looked}
        return self.record("compare", f"{rate}-{share}", inputs, metrics=metrics)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Forgetting(tmp_path / "runs").study()


def test_models_on_the_same_texts_are_collected_once_with_their_costs(study: Study) -> None:
    (measured,) = tradeoffs(study, FEWEST)
    assert {model.label: model.point for model in measured.models} == {
        BASE: BEFORE,
        **{f"rate {rate}": point for rate, point in ENDS.items()},
        **{f"rate {rate}, share {share}": point for (rate, share), point in BETWEEN.items()},
    }
    assert [model.hours for model in measured.models] == [0.0, 0.5, 0.5, 0.5, 0.5]
    mixed = next(model for model in measured.models if model.label == "rate 1e-4, share 0.5")
    assert mixed.general.change == pytest.approx(0.02)
    assert (mixed.general.low, mixed.general.high) == (pytest.approx(-0.01), pytest.approx(0.05))


def test_the_verdict_names_the_knee_what_it_changed_and_what_it_cost(study: Study) -> None:
    (finding,) = tradeoff_verdicts(tradeoffs(study, FEWEST))
    assert finding.head == "Gain against forgetting"
    assert finding.text.replace("\N{MINUS SIGN}", "-") == (
        "Of 5 models, 4 are beaten on both texts by none; the knee is rate 1e-4, share 0.5: loss on the domain 2.20"
        " (-0.80, -0.83 to -0.77) and loss on general text 2.02 (+0.02, -0.01 to +0.05), for 0.5 device-hours."
    )


def test_the_section_lists_the_front_and_folds_the_rest(study: Study) -> None:
    blocks = tradeoff_section(tradeoffs(study, FEWEST))
    front = next(block for block in blocks if isinstance(block, Table))
    names = [row[0].text for row in front.rows if not isinstance(row[0], str)]
    assert names == ["rate 5e-4", "rate 1e-4", "rate 1e-4, share 0.5", "base"]
    folded = next(block for block in blocks if isinstance(block, Folded))
    assert folded.title == "All 5 models"


def test_the_report_has_it_and_shows_no_comparison_twice(study: Study, tmp_path: Path) -> None:
    page = write_report(study, tmp_path / "report").read_text(encoding="utf-8")
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "## Gain against forgetting" in text
    assert "the knee is rate 1e-4, share 0.5" in text.partition("## What was run")[0]
    assert "Held-out loss against" not in text
    assert "## Losses and similarity" not in text
    assert "gain-against-forgetting-0" in page or page.count("<svg") >= 1


def test_other_texts_are_not_compared(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    entries = [
        Entry("dapt", "dapt", {"domain": name}, finished(fake.export(name, 0.1, (3, 2, 2, 2.5), 2.0)))
        for name in ("cs", "bio")
    ]
    assert tradeoffs(Study("two domains", "dapt", entries), FEWEST) == []


def test_a_front_without_a_knee_names_its_models(tmp_path: Path) -> None:
    fake = Forgetting(tmp_path)
    entries = [Entry("dapt", "dapt", {"rate": "1"}, finished(fake.adapted("1", (2.5, 2.5))))]
    entries.append(Entry("dapt", "dapt", {"rate": "2"}, finished(fake.adapted("2", (2.6, 2.6)))))
    (finding,) = tradeoff_verdicts(tradeoffs(Study("s", "dapt", entries), FEWEST))
    assert (
        finding.text == "Of 3 models, 2 are beaten on both texts by none (rate 1; base), and their front has no knee."
    )
    assert finding.tone == "open"

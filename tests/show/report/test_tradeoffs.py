"""Tests the report on gain versus forgetting: models, Pareto front, mixture law, and a sentence on repeated text."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from adapt.runner.record import Record
from adapt.show.blocks import Folded, Table
from adapt.show.report.pareto_front import FEWEST, knee, pareto_front
from adapt.show.report.study import Entry, Study
from adapt.show.report.tradeoffs import (
    BASE,
    REPLAY,
    ComparableModels,
    LossOn,
    Mixed,
    TradeOff,
    law_findings,
    passes_over,
    repeats_finding,
    tradeoff_section,
    tradeoff_verdicts,
    tradeoffs,
)
from tests.show.report.fake_studies import Fake, finished, page_of


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_what_nothing_beats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = [(float(x), float(y)) for x, y in rng.integers(0, 12, size=(30, 2))]

    def is_beaten(place: int) -> bool:
        (x, y), others = points[place], [points[other] for other in range(len(points)) if other != place]
        earlier = points[:place]
        return any((a <= x and b <= y and (a, b) != (x, y)) for a, b in others) or (x, y) in earlier

    expected = {place for place in range(len(points)) if not is_beaten(place)}
    found = pareto_front(points)
    assert set(found) == expected
    assert [points[place] for place in found] == sorted(points[place] for place in found)


def test_the_knee_lies_farthest_below_the_line_between_the_ends() -> None:
    front = [(1.0, 8.0), (2.0, 3.0), (4.0, 2.0), (9.0, 1.0)]
    ends = np.array(front[0]), np.array(front[-1])
    scale = np.abs(ends[1] - ends[0])
    along = (ends[1] - ends[0]) / scale
    distances = []
    for point in front:
        away = (np.array(point) - ends[0]) / scale
        distances.append((along[1] * away[0] - along[0] * away[1]) / np.linalg.norm(along))
    assert knee(front) == int(np.argmin(distances)) or knee(front) == int(np.argmax(np.abs(distances)))
    assert knee(front) == 1


def test_losses_in_other_units_have_the_same_knee() -> None:
    front = [(1.0, 8.0), (2.0, 3.0), (4.0, 2.0), (9.0, 1.0)]
    assert knee([(100 * x + 3, y / 7 - 2) for x, y in front]) == 1


def test_two_models_or_a_front_that_bends_the_other_way_have_none() -> None:
    assert knee([(1.0, 2.0), (2.0, 1.0)]) is None
    assert knee([(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]) is None
    assert knee([(0.0, 1.0), (0.9, 0.8), (1.0, 0.0)]) is None


LENGTHS, SHARES = (1_000_000, 3_000_000, 10_000_000), (0.0, 0.1, 0.25, 0.5)


def losses(tokens: int, replay: float) -> tuple[float, float]:
    """Returns losses on the domain and on general text.

    After 10 M tokens, the loss on general text is at most 3 if the share of replay is at least 20%.
    """
    length = tokens / 10_000_000
    domain = 1.5 + 0.3 * (1 - replay) ** 0.5 / length**0.2 + 0.1 / (1 - replay + 0.1)
    general = 2.75 + 0.2 * replay / length**0.2 + 0.07 / (replay + 0.13)
    return domain, general


def studied(lengths: tuple[int, ...] = LENGTHS, rates: tuple[str, ...] = ("1e-4",)) -> ComparableModels:
    base = TradeOff(BASE, {}, LossOn(4.0), LossOn(losses(10_000_000, 0.2)[1] + 1e-4), 0.0)
    models = [base]
    for rate in rates:
        for tokens in lengths:
            for replay in SHARES:
                domain, general = (LossOn(value) for value in losses(tokens, replay))
                values = {"rate": rate, "length": str(tokens), "replay": str(replay)}
                models.append(TradeOff(f"rate {rate}", values, domain, general, 1.0, Mixed(tokens, replay, rate)))
    return ComparableModels(models)


def test_the_smallest_share_that_keeps_general_text_is_named_with_how_well_the_law_fits() -> None:
    (finding,) = law_findings(studied())
    assert finding.head == "Replay share by the D-CPT law, 12 trainings like rate 1e-4"
    share = int(finding.text.partition("%")[0])
    assert 18 <= share <= 21
    assert "keeps the loss on general text at" in finding.text
    assert "over 10,000,000 tokens" in finding.text
    assert finding.text.count("of the variance explained") == 2


def test_each_learning_rate_has_a_law_of_its_own() -> None:
    assert len(law_findings(studied(rates=("1e-4", "5e-4")))) == 2


def test_one_length_or_no_share_that_suffices_is_said_or_left_out() -> None:
    assert law_findings(studied(lengths=LENGTHS[:1])) == []
    found = studied()
    base = TradeOff(BASE, {}, LossOn(4.0), LossOn(1.0), 0.0)
    (finding,) = law_findings(ComparableModels([base, *found.models[1:]]))
    assert finding.text.startswith("No share of replayed text up to 50% keeps")
    assert finding.tone == "open"
    # Without the base's loss on general text, it is unknown which loss replay should keep.
    assert law_findings(ComparableModels(found.models[1:])) == []


BEFORE = 3.0, 2.0
ENDS = {"1e-4": (2.0, 2.3), "5e-4": (1.8, 3.0)}
BETWEEN = {("1e-4", "0.5"): (2.2, 2.02), ("5e-4", "0.5"): (2.1, 2.4)}


class Forgetting(Fake):
    """Two training runs on the same domain, each with a model that is merged from the base and the trained model."""

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
        made = self.export("mine", 0.5, losses, 2.0)  # only the inputs and metrics of this record are used
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
        "4 of 5 models are Pareto-optimal (no other model is better on both texts). The best compromise (the knee) is"
        " rate 1e-4, share 0.5: loss on the domain 2.20"
        " (-0.80, -0.83 to -0.77) and loss on general text 2.02 (+0.02, -0.01 to +0.05), for 0.5 device-hours."
    )


def test_a_pair_of_texts_is_named_by_the_values_that_all_its_models_share() -> None:
    found = [
        ComparableModels(
            [
                TradeOff(BASE, {}, LossOn(3.0), LossOn(2.0), 0.0),
                *(
                    TradeOff(f"{task} {rate}", {"task": task, "rate": rate}, LossOn(loss), LossOn(5.0 - loss), 1.0)
                    for rate, loss in (("1e-4", 2.5), ("5e-4", 2.0))
                ),
            ]
        )
        for task in ("imdb", "scicite")
    ]
    heads = ["Gain against forgetting, task imdb", "Gain against forgetting, task scicite"]
    assert [finding.head for finding in tradeoff_verdicts(found)] == heads
    folded = [block.title for block in tradeoff_section(found) if isinstance(block, Folded)]
    assert folded == ["All 3 models, task imdb", "All 3 models, task scicite"]


def test_the_section_lists_the_front_and_folds_the_rest(study: Study) -> None:
    blocks = tradeoff_section(tradeoffs(study, FEWEST))
    front = next(block for block in blocks if isinstance(block, Table))
    names = [row[0].text for row in front.rows if not isinstance(row[0], str)]
    assert names == ["rate 5e-4", "rate 1e-4", "rate 1e-4, share 0.5", "base"]
    folded = next(block for block in blocks if isinstance(block, Folded))
    assert folded.title == "All 5 models"


def test_the_report_has_it_and_shows_no_comparison_twice(study: Study, tmp_path: Path) -> None:
    page = page_of(study, tmp_path / "report").read_text(encoding="utf-8")
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "## Gain against forgetting" in text
    assert "The best compromise (the knee) is rate 1e-4, share 0.5" in text.partition("## What was run")[0]
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
    assert finding.text == (
        "2 of 3 models are Pareto-optimal (no other model is better on both texts): rate 1; base. There is no single"
        " best compromise."
    )
    assert finding.tone == "open"


def trainings(worth: float) -> list[tuple[Mixed, TradeOff]]:
    """Returns training runs with between 1 and 32 passes over the text, after which a token is worth less."""
    group = []
    for passes, share in product((1.0, 2.0, 4.0, 8.0, 16.0, 32.0), (0.0, 0.2)):
        loss = 2.0 + 0.8 / (1 + worth * (1 - np.exp(-(passes - 1) / worth))) ** 0.5 + 0.1 * share
        model = TradeOff("small", {}, LossOn(loss), LossOn(3.0), 1.0)
        group.append((Mixed(1000, share, "", passes), model))
    return group


def test_the_passes_beyond_which_repeats_stop_helping_are_named_with_their_interval() -> None:
    finding = repeats_finding(trainings(2.0), 0.02)
    assert finding is not None
    assert finding.head == "Repeats of the text, 12 trainings like small"
    assert finding.text.startswith("Beyond ")
    assert "repeats lower the loss by less than 0.02 nats (95% interval" in finding.text
    assert "Lowest loss measured: 2.4" in finding.text


def test_a_loss_that_still_falls_is_said_to_be_not_reached() -> None:
    finding = repeats_finding(trainings(100.0), 0.001)
    assert finding is not None
    assert finding.tone == "open"
    assert "After 32 passes, the most that were tried, repeats still" in finding.text
    assert "to not reached)" in finding.text


def test_too_few_trainings_give_no_finding() -> None:
    assert repeats_finding(trainings(2.0)[:6], 0.02) is None


def test_passes_are_the_tokens_read_of_the_domain_by_its_size(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    sizes = {"a": 100, "b": 50}
    texts = {name: fake.record("prepare", name, metrics={"train_tokens": size}) for name, size in sizes.items()}
    training = fake.record("train", "t", {f"corpora.{name}": text for name, text in texts.items()})
    assert passes_over(training, {"a": 400, "b": 200, REPLAY: 999}) == 4
    assert passes_over(training, {"a": 400, "c": 200}) is None

"""Tests the report's section on sequences of domains."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from adapt.show.blocks import NONE, Cell
from adapt.show.report.sequence_runs import MEASURES, Sequences, compare_methods, sequences_of
from adapt.show.report.sequence_section import legend, losses, sequence_verdicts, sequence_warnings
from adapt.show.report.sequence_tables import matrices, method_tables, methods
from adapt.show.report.study import Study
from adapt.statistics.comparison import holm
from benchmarks.sequences import tables
from benchmarks.sequential import _by_seed
from tests.show.report.fake_sequences import ORDERS, SEEDS, entry, fake_sequences, sequence
from tests.show.report.fake_studies import Fake, finished, page_of
from tests.show.report.test_report_page import Checked, both
from tests.statistics.made import sign_flips

MEASURE = {measure.name: measure for measure in MEASURES}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return fake_sequences(tmp_path_factory.mktemp("sequences"))


@pytest.fixture(scope="module")
def sequences(study: Study) -> Sequences:
    return sequences_of(study)


def figures(study: Study, method: str, name: str) -> dict[tuple[str, str], float]:
    """Returns one metric from all records of a method, keyed by order and seed."""
    return {
        (one.values["order"], one.values["seed"]): one.record.metrics[name]
        for one in study.entries
        if one.values["method"] == method
    }


def by_seed(study: Study, method: str, name: str) -> dict[str, float]:
    """Returns one metric of a method per seed: the mean over both orders."""
    found = figures(study, method, name)
    return {seed: (found["a", seed] + found["b", seed]) / 2 for order, seed in found if order == "a"}


def number(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-"))


def test_the_baseline_comes_first_and_orders_keep_their_names(sequences):
    assert list(sequences.methods) == ["NCL", "DAS", "EWC", "ONE", "JOINT"]
    assert sequences.orders == {domains: name for name, domains in ORDERS.items()}
    assert {name: len(runs) for name, runs in sequences.methods.items()} == {
        **dict.fromkeys(("NCL", "DAS", "EWC"), 2 * SEEDS),
        # Separate and joint models do not depend on the order of domains, so they have one run per seed.
        **dict.fromkeys(("ONE", "JOINT"), SEEDS),
    }


def test_a_sequential_study_compares_nothing_before_its_first_look(study):
    early = sequences_of(replace(study, looks=[]))
    assert not any(compare_methods(early).values())
    assert {finding.tone for finding in sequence_verdicts(early)} == {"plain"}


def test_comparisons_that_ended_early_are_not_missing_runs(study):
    fewer = replace(study, entries=[one for one in study.entries if tuple(one.values.values()) != ("NCL", "b", "2")])
    assert any("sequences have finished" in each.text for each in sequence_warnings(sequences_of(fewer)))
    early = sequences_of(replace(fewer, looks=[]))
    assert not any("sequences have finished" in each.text for each in sequence_warnings(early))


def test_raw_figures_of_a_seed_are_means_over_its_orders(study, sequences):
    found = _by_seed(sequences.methods["DAS"], ["forgetting"])
    assert {seed: figures["forgetting"] for seed, figures in found.items()} == pytest.approx(
        by_seed(study, "DAS", "forgetting"), abs=1e-5
    )


def test_methods_are_means_over_seeds_each_the_mean_of_its_orders(study, sequences):
    table = methods(sequences, compare_methods(sequences))
    rows = {row[0].text: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}
    values = [100 * each for each in by_seed(study, "DAS", "forgetting").values()]
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    cell = rows["DAS"]["forgetting rate"]
    deviation, *interval = re.findall(r"[\N{MINUS SIGN}+]?\d+\.\d+", cell.small)
    shown = [number(each) for each in (cell.text, deviation, *interval)]
    assert shown == pytest.approx([np.mean(values), np.std(values, ddof=1), low, high], abs=0.051)
    assert rows["ONE"]["forgetting rate"].text == rows["JOINT"]["just learnt"].text == NONE
    assert (rows["DAS"]["seeds"], rows["DAS"]["runs"]) == (f"{SEEDS}", f"{2 * SEEDS}")
    assert "forward transfer" not in table.header  # The sequences measured no forward transfer.


def test_signs_of_changes_are_explained(sequences):
    table = methods(sequences, compare_methods(sequences))
    assert "change on general text" in table.header
    assert "Change on general text: positive if the loss rose, which is forgetting." in table.note
    assert "positive if the score rose or the loss fell" in table.note


def test_separate_models_stand_with_the_average_of_what_each_has_learnt(study, sequences):
    scores = study.entries[6 * SEEDS].record.metrics["scores"]  # scores of the separate models (method ONE) with seed 0
    own = [np.mean(scores["rows"][number + 1][task]) for task, number in scores["columns"].items()]
    assert sequences.methods["ONE"][0].figures["average"] == pytest.approx(np.mean(own))


def test_learning_is_compared_with_separate_models_of_the_same_seed(study, sequences):
    das, one = (figures(study, name, "learning") for name in ("DAS", "ONE"))
    expected = [value - one["a", seed] for (_, seed), value in das.items()]
    assert sequences.values("DAS", "against_one") == pytest.approx(
        np.mean([expected[:SEEDS], expected[SEEDS:]], axis=0)
    )


def test_differences_are_paired_by_seed_over_its_orders_and_corrected_by_holm(study, sequences):
    found = compare_methods(sequences)["forgetting"]
    base = by_seed(study, "NCL", "forgetting")
    tests = {
        name: stats.ttest_rel([by_seed(study, name, "forgetting")[seed] for seed in base], list(base.values()))
        for name in ("DAS", "EWC")
    }
    pairs = {name: [by_seed(study, name, "forgetting")[seed] - base[seed] for seed in base] for name in tests}
    ps = [max(float(each.pvalue), sign_flips(pairs[name])) for name, each in tests.items()]
    assert set(found) == set(tests)
    assert [found[name].comparison.p for name in tests] == pytest.approx(ps)
    assert [found[name].adjusted for name in tests] == pytest.approx(holm(ps))
    by_t = tests["DAS"].confidence_interval(0.95)
    assert (found["DAS"].comparison.low, found["DAS"].comparison.high) == pytest.approx(tuple(by_t), rel=0.01)
    assert found["DAS"].pairs == SEEDS
    # The difference in forgetting is negative, which means that DAS forgets less.
    assert found["DAS"].ended == "better"


def test_more_orders_of_the_same_seeds_are_no_more_evidence(tmp_path):
    """Uses runs with the same results in two orders of the domains.

    Both orders together have twice as many runs, but the interval and p must be equal.
    """
    fake, made = Fake(tmp_path), {}
    for orders in (("a",), ("a", "b")):
        entries = [
            entry(fake, {"method": name, "order": order, "seed": str(seed)}, {**values, "order": list(ORDERS[order])})
            for name, forgets in {"NCL": 0.015, "other": 0.0147}.items()
            for seed in range(6)
            for values in [sequence(ORDERS["a"], "continual", seed, forgets)]
            for order in orders
        ]
        sequences = sequences_of(Study("s", "NCL", entries))
        one = compare_methods(sequences)["average"]["other"].comparison
        made[orders] = (len(entries), one.low, one.high, one.p, *sequences.values("other", "average"))
    few, many = made.values()
    assert many[0] == 2 * few[0]
    assert many[1:] == pytest.approx(few[1:])


def test_separate_models_are_paired_by_seed_with_means_over_orders(study, sequences):
    base, joint = figures(study, "NCL", "average"), figures(study, "JOINT", "average")
    pairs = [joint["a", seed] - (base["a", seed] + base["b", seed]) / 2 for seed in map(str, range(SEEDS))]
    found = compare_methods(sequences)["average"]["JOINT"]
    assert (found.pairs, found.comparison.difference) == (SEEDS, pytest.approx(np.mean(pairs)))


def test_a_run_without_partner_is_in_the_mean_but_not_in_the_difference(study):
    entries = [one for one in study.entries if tuple(one.values.values()) != ("NCL", "b", "2")]
    sequences = sequences_of(replace(study, entries=entries))
    das, ncl = (figures(study, name, "average") for name in ("DAS", "NCL"))
    pairs = [np.mean([das[o, s] - ncl[o, s] for o in "ab" if (o, s) != ("b", "2")]) for s in map(str, range(SEEDS))]
    found = compare_methods(sequences)["average"]["DAS"]
    assert len(sequences.values("DAS", "average")) == SEEDS
    assert (found.pairs, found.comparison.difference) == (SEEDS, pytest.approx(np.mean(pairs)))
    assert [each.text for each in sequence_warnings(sequences) if each.head == "NCL"] == [
        f"{2 * SEEDS - 1} of {2 * SEEDS} sequences have finished."
    ]


def test_the_verdict_says_what_is_forgotten_and_how_surely(sequences):
    das, _, one, _ = sequence_verdicts(sequences)
    assert (das.head, das.tone) == ("DAS against NCL", "better")
    assert re.match(
        r"Better in forgetting rate, average score and average loss; undecided in change on general text\. "
        r"Forgets -0\.\d points \(95% CI -0\.9 to -0\.7; 8 seeds\), NCL \+2\.\d \(95% CI .*; 8 seeds\); "
        r"difference -3\.\d, 95% CI .*, p = \.008 .*\. Average score 79\.0 \(.*\), NCL 76\.\d \(",
        das.text.replace("\N{MINUS SIGN}", "-"),
    )
    assert re.search(
        r"\. Average held-out loss \d\.\d{3} nats per token \(.*\), NCL \d\.\d{3} \(", das.text
    )  # The verdict also states the loss.
    assert ". Average score 78." in one.text


@pytest.mark.parametrize(
    ("forgets", "seeds", "tone", "said"),
    [
        (0.0151, 6, "equal", "no difference that matters"),
        (0.05, 6, "worse", "p = .031"),
        (
            0.05,
            5,
            "open",
            "undecided; with so few seeds p cannot fall below .062, whatever the difference; about 6 seeds would",
        ),
        (0.015, 3, "open", "difference 0.0, p = 1.00"),
        (0.0, 1, "open", "significance cannot be tested with one seed"),
    ],
)
def test_the_verdict_is_no_stronger_than_the_runs(tmp_path, forgets, seeds, tone, said):
    fake = Fake(tmp_path)
    entries = [
        entry(fake, {"recipe": name, "seed": str(seed)}, sequence(ORDERS["a"], "continual", seed, each))
        for name, each in {"NCL": 0.015, "other": forgets}.items()
        for seed in range(seeds)
    ]
    (finding,) = sequence_verdicts(sequences_of(Study("s", "NCL", entries)))
    assert finding.tone == tone
    assert said in finding.text


def test_what_few_seeds_cannot_show_is_said_once(tmp_path):
    fake = Fake(tmp_path)
    entries = [
        entry(fake, {"recipe": name, "seed": str(seed)}, sequence(ORDERS["a"], "continual", seed, each))
        for name, each in {"NCL": 0.015, "other": 0.05, "third": 0.06}.items()
        for seed in range(3)
    ]
    other, third, limit = sequence_verdicts(sequences_of(Study("s", "NCL", entries)))
    assert "too few seeds" in other.text
    assert "too few seeds" in third.text
    assert (limit.head, limit.tone) == ("Seeds", "warning")
    assert limit.text.startswith("With so few seeds and 2 methods p cannot fall below ")
    assert "cannot fall below" not in other.text + third.text


def test_heatmaps_are_means_over_seeds_darkest_where_best(study, sequences):
    scores, of_texts = matrices(sequences.of("NCL", ORDERS["b"]), "b")
    assert scores.header == [
        "model",
        "helpfulness (reviews)",
        "hyperpartisan (news)",
        "chemprot (biomed)",
        "rct (biomed)",
        "acl_arc (cs)",
    ]
    # The model before the first domain has no row.
    assert [row[0] for row in scores.rows] == ["after reviews", "after news", "after biomed", "after cs"]
    records = [
        one.record.metrics for one in study.entries if one.values["method"] == "NCL" and one.values["order"] == "b"
    ]
    first = [np.mean(one["scores"]["rows"][1]["helpfulness"]) for one in records]
    cell = scores.rows[0][1]
    assert (cell.text, cell.small) == (f"{100 * np.mean(first):.1f}", f"± {100 * np.std(first, ddof=1):.1f}")
    # The score is highest after the task's own domain, and lowest after the last domain.
    assert (cell.strong, cell.shade, scores.rows[-1][1].shade) == (True, 1.0, 0.0)
    assert scores.rows[0][2].text == NONE
    assert of_texts.header == ["model", *ORDERS["b"], "general"]
    runs = [replace(run, documents={"cs": 9, "general": 1200}) for run in sequences.of("NCL", ORDERS["b"])]
    assert matrices(runs, "b")[1].note.endswith(" Held-out documents: cs 9, general 1,200.")
    assert [row[1].shade for row in of_texts.rows][:2] == [0.0, 1.0]
    assert not any(row[-1].strong for row in of_texts.rows)


def test_the_tables_of_the_replication_compare_every_two_methods_once(study, sequences):
    found = tables(sequences)
    compared = {table.title: {row[0].split(",")[0] for row in table.rows} for table in found if "from" in table.title}
    assert compared == {
        "Differences from NCL": {"DAS", "EWC", "ONE", "JOINT"},
        "Differences from DAS": {"EWC", "ONE", "JOINT"},
        "Differences from EWC": {"ONE", "JOINT"},
    }
    # Three methods have one row per order and seed, and two methods without an order have one row per seed.
    assert len(found[-1].rows) == 8 * SEEDS
    first = dict(zip(found[-1].header, found[-1].rows[0], strict=True))
    forgot = 100 * figures(study, "NCL", "forgetting")["a", "0"]
    assert (first["method"], first["order"], first["seed"]) == ("NCL", "a", "0")
    assert number(first["forgetting rate"]) == pytest.approx(forgot, abs=0.051)


def test_there_is_a_drawing_for_each_method(sequences):
    order = ORDERS["a"]
    assert [name for _, name in losses(sequences, order, sorted(order))] == ["NCL", "DAS", "EWC"]
    assert legend(sequences, sorted(order))[-1] == ("general", 0)


def test_what_a_method_noted_is_a_table_with_the_rows_of_every_seed(sequences):
    runs = sequences.of("DAS", ORDERS["a"])
    (table,) = method_tables("DAS", runs)
    assert table.title == "DAS: remaining plasticity"
    assert len(table.rows) == 5 * len(runs)
    assert table.rows[1] == ["seed 0, after 1 domains", Cell("0.60", "0.60 to 0.70"), Cell("0.75", "0.75 to 0.85")]
    assert method_tables("NCL", sequences.of("NCL", ORDERS["a"])) == []


def without_tasks(root: Path) -> Study:
    fake = Fake(root)
    made = [sequence(ORDERS["a"], "continual", seed, 0.01) for seed in range(2)]
    nothing = {"columns": {}, "metric": {}, "rows": [{}] * 5}
    scored = {"average": None, "learning": None, "forgetting": None}
    entries = [entry(fake, {"seed": str(one["seed"])}, {**one, **scored, "scores": nothing}) for one in made]
    return Study("losses only", "base", entries)


def one_domain(root: Path) -> Study:
    return Study("one", "base", [entry(Fake(root), {}, sequence(("cs",), "continual", 0))])


def only_separate(root: Path) -> Study:
    return Study("apart", "base", [entry(Fake(root), {}, sequence(ORDERS["a"], "separate", 0))])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            fake_sequences,
            [
                "DAS against NCL",
                "Differences from NCL",
                "16 warnings in 16 of 16 sequences",
                "80 domain sequences",
                "In order b: reviews → news",
            ],
        ),
        (without_tasks, ["Forgets, in held-out loss, +0.0", "Average held-out loss 2.", "loss forgetting"]),
        (one_domain, ["Average score 76.", "(1 seed)"]),
        (only_separate, ["a model for each domain", "Average score 78."]),
    ],
)
def test_every_study_of_sequences_gets_a_sensible_report(made, said, tmp_path):
    html = page_of(made(tmp_path / "study"), tmp_path / "report")
    page, markdown = both(html)
    for text in said:
        assert text in page
        assert text in markdown
    assert "No fine-tuning run" not in page
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", page + markdown)
    ids = [value for name, value in Checked(html.read_text(encoding="utf-8")).attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_sequences_stand_beside_fine_tuning(study, tmp_path):
    fake = Fake(tmp_path / "study")
    run = fake.finetune("NCL", fake.task("scierc"), 0, 0.7, 0)
    tuned = replace(
        study.entries[0], name="finetune", job="finetune", values={"recipe": "NCL", "seed": "0"}, finished=finished(run)
    )
    page, _ = both(page_of(replace(study, entries=[*study.entries, tuned]), tmp_path / "report"))
    assert (
        page.index("DAS against NCL")
        < page.index("Only the baseline, NCL, has finished")
        < page.index("Scores at the end")
    )

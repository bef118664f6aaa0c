"""Tests of the result of jobs/select.py: the selected texts, compared with random texts. Needs no Ray."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import Config, EvaluationConfig, ModelConfig, SelectConfig, StorageConfig, TaskConfig
from adapt.job.selection_job import select_stages
from adapt.runner import Finished, ensure
from adapt.runner.record import Record
from adapt.select.document_losses import sample_losses
from adapt.select.selection_metrics import kl_divergence, separability
from adapt.show.blocks import Figures, Findings, Folded, Table
from adapt.show.report.study import Entry
from adapt.show.report.trainings import selection_blocks
from adapt.stage.context import Context
from adapt.stage.select_documents import SelectionJudged
from adapt.stage.text_sources import lines_of
from tests.samples import sentences, with_labels, write
from tests.show.shown import show_result

TARGET = [f"gradient of layer {text}" for text in sentences(30, 1)]
LIKE = [f"gradient of layer {text}" for text in sentences(30, 2)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Config:
    folder = tmp_path_factory.mktemp("selection")
    texts = {"train": TARGET, "dev": sentences(4, 4), "test": sentences(4, 5)}
    splits = {split: write(folder / f"{split}.jsonl", with_labels(each)) for split, each in texts.items()}
    pool = write(folder / "pool.jsonl", [{"text": text} for text in [*sentences(150, 3), *LIKE]])
    options = {"weight": "mean", "noise": 0.0}
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        task=TaskConfig(**splits),  # type: ignore[arg-type]
        select=SelectConfig(kind="dsir", pool_paths=pool, documents=25),
        select_options={"dsir": options},
        training=replace(Config().training, sequence_length=64),
        evaluation=EvaluationConfig(sequence_length=64),
        storage=StorageConfig(root=str(folder / "runs")),
    )


@pytest.fixture(scope="module")
def judged(config: Config) -> Finished[SelectionJudged]:
    context = Context.of(config)
    return ensure(select_stages(context), context.store)


def test_the_folder_contains_the_selected_documents(judged: Finished[SelectionJudged], config: Config) -> None:
    lines = lines_of(judged.path)
    assert len(lines) == judged.result.documents == judged.result.selection.documents == 25
    assert sum(line["text"] in LIKE for line in lines) >= 15  # 30 of the pool's 180 texts are in LIKE
    chosen = Path(judged.record.inputs["chosen"]["path"])
    assert lines == lines_of(chosen)
    assert judged.result.pool == 180


def test_a_random_selection_of_equal_size_is_compared(judged: Finished[SelectionJudged]) -> None:
    found = judged.result
    assert found.random
    assert found.tokens == found.selection.tokens
    assert found.tokens <= found.random.tokens < found.tokens + 60
    assert found.way == "dsir"


def test_its_figures_are_those_of_the_texts(judged: Finished[SelectionJudged], config: Config, tiny_bert: Path) -> None:
    found, taken = judged.result, lines_of(judged.path)
    by_score = [line["text"] for line in sorted(taken, key=lambda line: -line["score"])]
    assert found.random
    assert found.selection.kl == pytest.approx(kl_divergence(TARGET, by_score))
    assert found.selection.auc == separability(TARGET, by_score, config.seed)
    assert found.kl_reduction == pytest.approx(found.random.kl - found.selection.kl)  # type: ignore[operator]
    assert found.kl_reduction > 0.1
    assert found.selection.auc is not None
    assert found.random.auc is not None
    assert found.selection.auc < found.random.auc
    assert found.target.kl is found.target.auc is found.target.shared_words is None
    assert found.target.documents == 30
    start = Context.of(config).start.pretrained
    (loss,) = sample_losses(config, start, {"target": TARGET}).values()
    # the texts are in another order, so other tokens are masked
    assert found.target.loss == pytest.approx(loss, rel=0.05)
    assert found.selection.loss
    assert found.random.loss


def test_twenty_examples_are_written(judged: Finished[SelectionJudged]) -> None:
    found = json.loads((judged.path / "examples.json").read_text())
    lines = {line["id"]: line for line in lines_of(judged.path)}
    assert len(found) == 20
    assert [each["rank"] for each in found[:10]] == list(range(1, 11))
    for each in found:
        assert lines[each["id"]]["text"] == each["text"]
        assert lines[each["id"]]["score"] == each["score"]
        assert each["nearest"] in TARGET


def test_diversity_is_the_mean_distance_and_every_set_is_on_the_map(judged: Finished[SelectionJudged]) -> None:
    found = judged.result
    assert found.random
    assert found.selection.distance
    assert found.target.distance
    assert found.random.distance
    assert found.selection.distance < found.random.distance  # random texts are of several kinds
    places = json.loads((judged.path / "map.json").read_text())
    assert list(places) == ["pool", "selection", "target", "random"]
    counts = {name: len(points) for name, points in places.items()}
    assert (counts["selection"], counts["target"], counts["pool"]) == (25, 30, 180)
    assert all(len(point) == 2 for points in places.values() for point in points)


def test_a_random_selection_is_not_compared_and_the_loss_is_optional(config: Config) -> None:
    given = SelectConfig(pool_paths=config.select.pool_paths, tokens=300, measure_loss=False)
    context = Context.of(replace(config, select=given))
    done = ensure(select_stages(context), context.store)
    assert (done.result.random, done.result.kl_reduction) == (None, None)
    assert done.result.selection.loss is done.result.target.loss is None


def test_terminal_and_report_show_it(judged: Finished[SelectionJudged], capsys: pytest.CaptureFixture[str]) -> None:
    show_result(judged)
    capsys.readouterr()
    show_result(judged)
    shown = capsys.readouterr().err
    for word in (
        "dsir",
        "random",
        "target",
        "reduction of the KL divergence",
        "texts.jsonl",
        f"{judged.result.tokens:,}",
    ):
        assert word in shown
    other = Finished(_without_random(judged.record), SelectionJudged)
    named = {"chosen": judged, "chosen again": judged, "other": other}
    entries = [Entry(name, "select", {}, finished) for name, finished in named.items()]
    # `chosen again` is the same result as `chosen`, so it is shown once
    table, drawn, folded = selection_blocks(entries)
    assert isinstance(table, Table)
    assert isinstance(drawn, Figures)
    assert [name for name, _ in drawn.legend] == ["pool", "target", "selection", "random"]
    for (svg, caption), name in zip(drawn.drawings, ("selection", "random"), strict=True):
        assert svg.startswith("<svg")
        assert "chosen" in caption
        assert f"var(--series-{dict(drawn.legend)[name]})" in svg
    assert [str(row[0]) for row in table.rows] == [
        "chosen",
        "chosen, random",
        "chosen, target",
        "other",
        "other, target",
    ]
    assert isinstance(folded, Folded)
    assert len(folded.blocks) == 2


def _without_random(record: Record) -> Record:
    return replace(record, key="other", metrics={**record.metrics, "random": None, "kl_reduction": None})


def test_markup_that_the_pool_lacks_is_in_record_terminal_and_report(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Markup that the pool lacks is reported, and it is removed from the target before texts are compared."""
    marked = [text.replace("layer", "<< layer >>") for text in TARGET]
    task = replace(config.task, train=write(tmp_path / "train.jsonl", with_labels(marked)))
    context = Context.of(replace(config, task=task))
    done = ensure(select_stages(context), context.store)
    (warning,) = done.result.markup
    assert "<< (100% of its texts), >> (100% of its texts)" in warning
    assert "warning: the target has markup that the pool lacks" in capsys.readouterr().err
    show_result(done)
    assert "<< (100%" in capsys.readouterr().err
    findings = selection_blocks([Entry("dsir", "select", {}, done)])[0]
    assert isinstance(findings, Findings)
    assert findings.items[0].text == warning
    examples = json.loads((done.path / "examples.json").read_text())
    assert all("<<" not in example["nearest"] for example in examples)

"""The page that follows a chain: how far it is, then the report; made anew where something has changed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.errors import StageError
from adapt.show.progress.now import ChainNow, TrainingNow
from adapt.show.progress.trials import TrialNow, TrialsNow
from adapt.show.report.entry import Entry, Study
from adapt.show.report.serving import page as page_module
from adapt.show.report.serving.page import FollowedPage
from tests.show.report.fake import Fake, finished
from tests.show.report.test_write import Checked

NOW = ChainNow(
    {"finished": 1, "running": 1, "waiting": 2},
    [["dapt", "0", "1", "0", ""], ["base", "1", "0", "2", "1; 2"]],
    [("train dapt", "step 4/10  loss 3.250")],
    [],
    [("base[1] and 1 more", "failed: <script>alert(1)</script>")],
    ["so far: 1 device-hours; 2 min of work in all"],
    ["tuned"],
    [("tapt", TrialsNow(25, 1, 0, ["dev_score"], [TrialNow(3, "epochs <8>", "train (2 of 6 stages)")]))],
)
EMPTY = Study("my study", "base", [], ["dapt"])


@pytest.fixture
def curve(tmp_path: Path) -> TrainingNow:
    reports = [json.dumps({"step": step, "loss": 9 - step}) for step in (2, 4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*reports, '{"step": 6, "lo']))
    return TrainingNow("dapt", "0" * 64, "running", "step 4/10", tmp_path / "metrics.jsonl")


def html(now: ChainNow, study: Study = EMPTY) -> str:
    return FollowedPage("my study", lambda: (study, now)).html()


def test_it_says_how_far_the_chain_is_and_escapes_what_it_shows() -> None:
    page = html(NOW)
    text = " ".join(Checked(page).text.split())
    for said in (
        "1 of 4 stages finished, 1 running. 1 more follow when the searches are finished.",
        "train dapt step 4/10 · loss 3.250",
        "base[1] and 1 more failed: <script>alert(1)</script>",
        "so far: 1 device-hours",
        "search tapt: 1 of 25 trials have ended",
        "3 train (2 of 6 stages) epochs <8>",
        "No fine-tuning run has finished",
    ):
        assert said in text
    assert "<script>alert" not in page


def test_a_loss_is_drawn_as_far_as_it_has_come(curve: TrainingNow) -> None:
    page = html(replace(NOW, trainings=[curve]))
    assert page.count("<svg") == 1
    assert html(NOW).count("<svg") == 0
    stopped = replace(NOW, trainings=[replace(curve, state="stopped")]).blocks()
    assert [caption for block in stopped if hasattr(block, "drawings") for _, caption in block.drawings] == [
        "dapt, stopped: step 4/10"
    ]


def test_all_that_it_loads_is_its_own_script() -> None:
    found = Checked(html(NOW))
    outside = [
        value for name, value in found.attributes if name in ("src", "href") and not (value or "").startswith("#")
    ]
    assert outside == ["/follow.js"]


def test_the_report_is_made_again_where_more_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def contents(given: Study) -> tuple[str, list[object]]:
        made.append(len(given.entries))
        return f"{len(given.entries)} finished", []

    monkeypatch.setattr(page_module, "contents_of", contents)
    monkeypatch.setattr(page_module, "LEAST_S", 0.0)
    monkeypatch.setattr(page_module, "SHARE", 1e9)
    first, second = (Entry(name, "merge", {}, finished(Fake(tmp_path).record("merge", name))) for name in "ab")
    entries = [first]
    page = FollowedPage("my study", lambda: (replace(EMPTY, entries=list(entries)), NOW))
    page.html(), page.html()
    assert made == [1]
    entries.append(second)
    assert "2 finished" in page.html()
    assert made == [1, 2]


def test_who_asks_soon_again_gets_the_same_page() -> None:
    looks = []
    page = FollowedPage("my study", lambda: (looks.append(1), (EMPTY, NOW))[1])
    assert page.html() == page.html()
    assert len(looks) == 1


def test_a_look_that_fails_is_told_beside_what_was_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "LEAST_S", 0.0)
    monkeypatch.setattr(page_module, "SHARE", 1e9)
    answers = [(EMPTY, NOW)]

    def look() -> tuple[Study, ChainNow]:
        if not answers:
            raise StageError("stage.json cannot be read", "move it away")
        return answers.pop()

    page = FollowedPage("my study", look)
    page.html()
    text = Checked(page.html()).text
    assert "stage.json cannot be read" in text
    assert "1 of 4 stages finished" in text

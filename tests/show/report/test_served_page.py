"""Tests the page that shows a running chain, and the server of the page."""

import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import adapt.show.report.served_page as page_module
from adapt.show.blocks import Section, TextBlock
from adapt.show.progress.chain_now import ChainNow, TrainingNow, TrialNow, TrialsNow
from adapt.show.renderers import render_html
from adapt.show.report.served_page import FollowedPage, is_own, serving
from adapt.show.report.study import Entry, Study
from adapt.statistics.seeds import Looked
from adapt.support.errors import ConfigError, StageError
from tests.show.report.fake_studies import Fake, finished
from tests.show.report.test_report_page import Checked

NOW = ChainNow(
    {"finished": 1, "running": 1, "waiting": 2},
    [["dapt", "0", "1", "0", ""], ["base", "1", "0", "2", "1; 2"]],
    [("train dapt", "step 4/10  loss 3.250")],
    [],
    [("base[1] and 1 more", "failed: <script>alert(1)</script>")],
    ["Finished stages took 1 device-hours and 2 min of work in all."],
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
        "1 of 4 results are finished, 1 running and 2 waiting.",
        "1 more follow when the searches have finished.",
        "train dapt step 4/10 · loss 3.250",
        "base[1] and 1 more failed: <script>alert(1)</script>",
        "Finished stages took 1 device-hours",
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


def test_the_report_is_made_again_after_a_look_and_for_fewer_missing_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "contents_of", lambda study: (f"{len(study.looks)} {study.missing}", []))
    monkeypatch.setattr(page_module, "LEAST_S", 0.0)
    monkeypatch.setattr(page_module, "SHARE", 1e9)
    study = replace(EMPTY, looks=[], missing=["dapt"])
    looked = Looked("a", "", 1, [4], 0.05, 0.01, 1, 0, 0, "obrien_fleming", {})
    studies = [study, replace(study, looks=[looked]), replace(study, looks=[looked], missing=[])]
    page = FollowedPage("my study", lambda: (studies.pop(0), NOW))
    assert "0 [&#39;dapt&#39;]" in page.html()
    assert "1 [&#39;dapt&#39;]" in page.html()
    assert "1 []" in page.html()


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
    assert "1 of 4 results are finished" in text


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(lambda: "<p>a page</p>", 0) as found:
        yield found


def ask(address: str, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.headers
    connection.close()
    return found


def test_it_serves_the_page_and_its_script_and_nothing_else(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    assert ask(address)[:2] == (200, "<p>a page</p>")
    assert "fetch(" in ask(address, "/follow.js")[1]
    assert ask(address, "/report.html.j2")[0] == ask(address, "/../style.css")[0] == 404
    assert ask(address, method="HEAD")[:2] == (200, "")
    assert ask(address, method="POST")[0] == 501


def test_a_page_that_has_not_changed_is_not_sent_again(address: str) -> None:
    tag = ask(address)[2]["ETag"]
    assert ask(address, If_None_Match=tag)[:2] == (304, "")
    assert ask(address, If_None_Match='"another"')[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8300", "127.0.0.1.evil.example", "localhost@evil", ""])
def test_another_name_for_this_machine_is_refused(address: str, host: str) -> None:
    status, said, _ = ask(address, Host=host)
    assert status == 421
    assert "a page</p>" not in said


def test_a_tunnel_has_a_port_of_its_own() -> None:
    assert all(map(is_own, ("localhost:9000", "127.0.0.1:1", "[::1]:8300", "localhost")))
    assert not any(map(is_own, ("localhost:x", "[::1", "::1", "localhost:8300:9", "10.0.0.1:8300")))


def test_no_other_site_may_load_or_frame_it(address: str) -> None:
    headers = ask(address)[2]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_a_port_that_is_taken_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        serving(lambda: "", urlsplit(address).port or 0).__enter__()
    assert "--port" in caught.value.fix


@pytest.mark.skipif(not BROWSER, reason="there is no Chromium here")
def test_a_browser_shows_what_has_come_since_it_opened_the_page(tmp_path: Path) -> None:
    looks = count()

    def page() -> str:
        return render_html("study", "", [Section("Now", [TextBlock(f"look {min(next(looks), 2)}")])], follows=True)

    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    with serving(page, 0) as address:
        ran = subprocess.run(
            [str(BROWSER), *options, "--virtual-time-budget=9000", "--dump-dom", address],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    assert "<p>look 2</p>" in ran.stdout
    assert "follows the chain; last read at" in ran.stdout

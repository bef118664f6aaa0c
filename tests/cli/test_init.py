"""`dontstop init` detects fields and formats of a user's files, and writes a configuration that runs unchanged."""

import csv
import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from adapt.cli.draft_length import DraftLength, ModelProperties
from adapt.cli.inspect_files import heldout_share, inspect_corpus
from adapt.cli.main import run_command
from adapt.config import Config
from adapt.config.job_config import DAPT, Kind
from adapt.evaluate.measurements import FEWEST
from adapt.job import JOBS
from adapt.parse import parse
from adapt.support.errors import ConfigError, DataError, ModelError
from tests.corpus.documents.made_documents import docx, page, scanned_pdf
from tests.corpus.documents.made_documents import write as documents
from tests.corpus.documents.public_domain import paragraphs
from tests.drive import Job
from tests.samples import labelled, sentences, write

TEXTS = [f"{text} Number {number}." for number, text in enumerate(sentences(300, 1, 12, 30))]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("adapt.cli.init.has_gpu", lambda: False)


def written(*arguments: str, kind: Kind = DAPT) -> Config:
    """Runs `dontstop init`, and returns the configuration that the job reads from the written file."""
    run_command(["init", *arguments])
    return parse(["--config", "my.yaml"], "dontstop", kind)


def write_task(folder: Path, **counts: int) -> str:
    folder.mkdir()
    for seed, (split, count) in enumerate(counts.items()):
        write(folder / f"{split}.jsonl", labelled(count, seed))
    return str(folder)


def test_the_text_field_is_detected_in_every_format() -> None:
    records = [{"id": number, "url": "http://x/" + "y" * 400, "body": text} for number, text in enumerate(TEXTS)]
    write(Path("a.jsonl"), records)
    Path("b.jsonl.gz").write_bytes(gzip.compress(Path("a.jsonl").read_bytes()))
    pq.write_table(pa.table({name: [record[name] for record in records] for name in records[0]}), "c.parquet")
    with open("d.csv", "w", newline="") as file:
        table = csv.DictWriter(file, ["id", "url", "body"])
        table.writeheader()
        table.writerows(records)
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet", "d.csv"):
        look = inspect_corpus([name])
        assert (look.text_field, look.documents, look.is_whole) == ("body", 300, True), name
        assert look.text_bytes == sum(map(len, TEXTS))
    config = written("a.jsonl", "d.csv")
    assert config.corpus.text_field == "body"
    assert config.corpus.paths == ["a.jsonl", "d.csv"]


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["papers/0.jsonl", "papers/1.jsonl"], "papers"),
        (["papers/0.jsonl"], "0"),
        (["papers/*.jsonl"], "papers"),
        (["papers/*.jsonl", "papers/old"], "papers"),
    ],
)
def test_several_files_name_the_configuration_after_their_folder(paths: list[str], name: str) -> None:
    Path("papers/old").mkdir(parents=True)
    for file in ("papers/0.jsonl", "papers/1.jsonl", "papers/old/2.jsonl"):
        write(Path(file), [{"text": text} for text in TEXTS[:60]])
    assert written(*paths).name == name


def test_a_field_named_text_has_priority_and_text_needs_no_spaces() -> None:
    write(Path("a.jsonl"), [{"text": "a short text of its own", "other": "a longer one " * 20}] * 30)
    assert inspect_corpus(["a.jsonl"]).text_field == "text"
    write(Path("b.jsonl"), [{"key": "f" * 90, "文": "深度学习模型的训练需要大量数据和计算资源"}] * 30)
    assert inspect_corpus(["b.jsonl"]).text_field == "文"


def test_plain_text_is_read_by_lines_or_by_paragraphs() -> None:
    Path("lines.txt").write_text("\n".join(TEXTS))
    Path("wrapped.txt").write_text("\n\n".join(text.replace(" ", "\n") for text in TEXTS))
    assert written("lines.txt").corpus.text_unit == "line"
    assert written("wrapped.txt", "--force").corpus.text_unit == "paragraph"
    assert inspect_corpus(["wrapped.txt"]).documents == 300


def test_the_size_of_large_text_is_estimated_from_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapt.cli.inspect_files.SAMPLE_BYTES", 4000)
    write(Path("a.jsonl"), [{"text": text} for text in TEXTS])
    Path("b.jsonl.gz").write_bytes(gzip.compress(Path("a.jsonl").read_bytes()))
    for name in ("a.jsonl", "b.jsonl.gz"):
        look = inspect_corpus([name])
        assert not look.is_whole
        assert 200 <= look.documents <= 400, name
    run_command(["init", "a.jsonl"])
    assert ", about " in Path("my.yaml").read_text()


@pytest.mark.parametrize("count", [12, 24, 60, 300])
def test_enough_documents_are_held_out_for_an_interval(count: int) -> None:
    share, held = heldout_share(TEXTS[:count], count, is_whole=True)
    assert FEWEST <= held <= max(0.5 * count, FEWEST)
    assert 0 < share < 1


def test_the_heldout_share_decreases_with_the_number_of_documents() -> None:
    assert heldout_share(TEXTS, 50_000, is_whole=False) == (0.01, 500)
    assert heldout_share(TEXTS, 10_000_000, is_whole=False) == (0.0005, 5000)
    assert heldout_share(TEXTS, 1000, is_whole=False)[1] >= 30


@pytest.mark.parametrize("kind", ["single_label", "multi_label", "tokens"])
def test_the_fields_and_the_kind_of_a_task_are_detected(kind: str) -> None:
    examples = labelled(200, 0)
    for number, example in enumerate(examples):
        text, label = example.pop("text"), example.pop("label")
        words = text.split()
        example |= {
            "single_label": {"id": number, "sentence": text, "topic": label, "lang": "en"},
            "multi_label": {"sentence": text, "topics": [label, "xyz"[number % 3]]},
            "tokens": {"words": words, "tags": ["B-X", *["O"] * (len(words) - 1)]},
        }[kind]
    write(Path("train.jsonl"), examples[:150])
    write(Path("dev.jsonl"), examples[150:])
    Path("train.jsonl").write_text("not a record\n" + Path("train.jsonl").read_text())
    task = written("--task", "train.jsonl", "dev.jsonl", kind=JOBS["tapt"].kind).task
    fields = {"single_label": ("sentence", "topic"), "multi_label": ("sentence", "topics"), "tokens": ("words", "tags")}
    assert (task.kind, task.text_field, task.label_field) == (kind, *fields[kind])
    assert (task.train, task.dev, task.test) == ("my-train.jsonl", "dev.jsonl", "my-test.jsonl")


def test_a_folder_of_a_task_gives_its_splits() -> None:
    write(Path("text.jsonl"), [{"text": text} for text in TEXTS])
    Path("papers").mkdir()
    folder = write_task(Path("papers/topics"), train=100, validation=40, test=40)
    config = written("text.jsonl", "--task", folder)
    assert config.task.name == "topics"
    files = [f"papers/topics/{split}.jsonl" for split in ("train", "validation", "test")]
    assert [config.task.train, config.task.dev, config.task.test] == files
    assert [each.paths for each in config.corpus.decontaminate] == files[1:]
    assert parse(["--config", "my.yaml"], "dontstop", JOBS["tapt"].kind).task == config.task


@pytest.mark.parametrize(("train", "epochs", "patience"), [(100, 43, None), (470, None, 3)])
def test_fine_tuning_suits_few_labels_and_a_small_model(train: int, epochs: int | None, patience: int | None) -> None:
    folder = write_task(Path("task"), train=train, dev=40, test=40)
    finetune = written("--task", folder, kind=JOBS["tapt"].kind).finetune
    assert (finetune.epochs, finetune.patience, finetune.learning_rate) == (epochs, patience, 5e-4)


@pytest.mark.parametrize(("train", "layers", "rate"), [(100, 6, 1e-4), (470, 6, None), (100, 24, None)])
def test_a_medium_model_gets_a_higher_rate_on_few_labels(train: int, layers: int, rate: float | None) -> None:
    about = {"model_type": "bert", "vocab_size": 30_522, "hidden_size": 384, "num_hidden_layers": layers}
    Path("bert").mkdir()
    Path("bert/config.json").write_text(json.dumps({**about, "architectures": ["BertForMaskedLM"]}))
    Path("bert/tokenizer.json").write_text("{}")
    folder = write_task(Path("task"), train=train, dev=40, test=40)
    assert written("--task", folder, "--model", "bert", kind=JOBS["tapt"].kind).finetune.learning_rate == rate


def test_missing_dev_and_test_are_split_off_train() -> None:
    examples = labelled(200, 0)
    write(Path("all.jsonl"), examples + examples[:50])
    config = written("--task", "all.jsonl", kind=JOBS["tapt"].kind)
    files = [config.task.train, config.task.dev, config.task.test]
    assert files == ["my-train.jsonl", "my-dev.jsonl", "my-test.jsonl"]
    splits = [{json.loads(line)["text"] for line in Path(str(file)).read_text().splitlines()} for file in files]
    assert set.union(*splits) == {example["text"] for example in examples}
    assert sum(map(len, splits)) == len(set.union(*splits))
    assert all(len(split) > 5 for split in splits)


@pytest.mark.parametrize("count", [10, 11, 20, 30])
@pytest.mark.parametrize("seed", range(3))
def test_small_tasks_get_dev_and_test_too(count: int, seed: int) -> None:
    """By hash alone, most tasks with ten texts have no example for dev or test."""
    examples = labelled(count, seed)
    write(Path("all.jsonl"), examples + examples[:2])
    task = written("--task", "all.jsonl", kind=JOBS["tapt"].kind).task
    files = [task.train, task.dev, task.test]
    splits = [{json.loads(line)["text"] for line in Path(str(file)).read_text().splitlines()} for file in files]
    assert all(splits)
    assert sum(map(len, splits)) == len(set.union(*splits)) == count
    assert len(splits[0]) >= 0.6 * count


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (2, r"all\.jsonl has 2 different texts, too few for train, dev, test"),
        (3, "cannot be split off .*has only one value"),
    ],
)
def test_nothing_is_left_behind_if_splits_cannot_be_split_off(count: int, message: str) -> None:
    examples = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(TEXTS[:count])]
    write(Path("all.jsonl"), examples * 3)
    for _ in range(2):  # a repeat fails for the same reason
        with pytest.raises(DataError, match=message) as raised:
            run_command(["init", "--task", "all.jsonl"])
        assert "--task TRAIN DEV TEST" in raised.value.fix
        assert [path.name for path in Path().iterdir()] == ["all.jsonl"]


def test_nothing_is_left_behind_if_the_text_is_missing() -> None:
    write(Path("all.jsonl"), labelled(40, 0))
    with pytest.raises(DataError, match=r"missing\.jsonl matches no file"):
        run_command(["init", "missing.jsonl", "--task", "all.jsonl"])
    assert [path.name for path in Path().iterdir()] == ["all.jsonl"]


def test_tasks_may_be_sorted_by_label_and_have_many_classes() -> None:
    write(
        Path("a.jsonl"),
        [{"text": f"{number} {TEXTS[number % 300]}", "label": number // 1500} for number in range(3000)],
    )
    assert written("--task", "a.jsonl", kind=JOBS["tapt"].kind).task.label_field == "label"
    write(
        Path("b.jsonl"),
        [{"text": f"{number} {TEXTS[number % 300]}", "intent": f"i{number % 150}"} for number in range(3000)],
    )
    assert written("--task", "b.jsonl", "--force", kind=JOBS["tapt"].kind).task.label_field == "intent"


def test_no_file_is_overwritten_without_force() -> None:
    write(Path("a.jsonl"), [{"text": text} for text in TEXTS])
    Path("my.yaml").write_text("mine")
    with pytest.raises(ConfigError, match=r"my\.yaml exists"):
        run_command(["init", "a.jsonl"])
    assert Path("my.yaml").read_text() == "mine"
    run_command(["init", "a.jsonl", "--force"])
    write(Path("b.jsonl"), labelled(100, 0))
    Path("new-dev.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"new-dev\.jsonl exists"):
        run_command(["init", "--task", "b.jsonl", "--out", "new.yaml"])
    assert Path("new-dev.jsonl").read_text() == "mine"
    assert not Path("new-train.jsonl").exists()


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (["--task", "my-train.jsonl"], "my-train.jsonl"),
        (["a.jsonl", "--task", "b.jsonl", "--general", "my-train.jsonl"], "my-train.jsonl"),
        (["a.jsonl", "--out", "a.jsonl"], "a.jsonl"),
        (["file://{here}/a.jsonl", "--out", "link.jsonl"], "link.jsonl"),
        (["folder", "--out", "folder/a.jsonl"], "folder/a.jsonl"),
    ],
)
def test_inputs_are_never_replaced(arguments: list[str], target: str, force: list[str]) -> None:
    Path("folder").mkdir()
    for file in ("my-train.jsonl", "a.jsonl", "b.jsonl", "folder/a.jsonl"):
        write(Path(file), labelled(100, 0))
    os.link("a.jsonl", "link.jsonl")
    before = {path: path.read_bytes() for path in Path().rglob("*.*")}
    with pytest.raises(ConfigError, match=f"{target} is an input"):
        run_command(["init", *(argument.format(here=Path.cwd()) for argument in arguments), *force])
    assert {path: path.read_bytes() for path in Path().rglob("*.*")} == before


def test_a_failure_keeps_the_splits_that_it_would_have_replaced() -> None:
    write(Path("all.jsonl"), [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(TEXTS[:3])] * 3)
    for split in ("train", "dev", "test"):
        Path(f"my-{split}.jsonl").write_text("mine")
    with pytest.raises(DataError, match=f"split off all.jsonl: {Path.cwd()}/my-train.jsonl: .* only one value"):
        run_command(["init", "--task", "all.jsonl", "--force"])
    assert {path.name: path.read_text() for path in Path().iterdir() if path.name != "all.jsonl"} == {
        f"my-{split}.jsonl": "mine" for split in ("train", "dev", "test")
    }


REFUSED = [
    (["missing.jsonl"], DataError, "missing.jsonl matches no file"),
    (["numbers.jsonl"], DataError, r"no field holds text; the fields are 'a' \(other values\), 'c' \(text of about 8"),
    (["short.jsonl"], DataError, "no document is left to train on"),
    (["mixed/*.jsonl"], DataError, "has no field 'text'; it has 'body'"),
    (["--task", "unlabelled.jsonl"], DataError, "no field holds labels"),
    (["--task", "ids.jsonl"], DataError, "the field 'label' has too many different values for a label"),
    (["--task", "booleans.jsonl"], DataError, "the field 'label' holds neither strings nor integers"),
    (["--task", "one.jsonl"], DataError, "the field 'label' has only one value"),
    (["--task", "mixed"], DataError, "has no file of training examples; it has a.jsonl, b.jsonl"),
    (["--task", "semicolons.csv"], DataError, r"semicolons\.csv has semicolons between its values"),
    (["semicolons.csv"], DataError, r"semicolons\.csv has semicolons between its values"),
    (["--task", *"abcd"], ConfigError, "at most three paths"),
    (["unlabelled.jsonl", "--model", "./nowhere"], ModelError, "no model folder"),
    (["unlabelled.jsonl", "--mdl", "x"], ConfigError, "unrecognized arguments: --mdl"),
    (["--model", "x"], ConfigError, "no file is named"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED)
def test_unusable_files_and_options_are_refused(arguments: list[str], error: type[Exception], message: str) -> None:
    write(Path("numbers.jsonl"), [{"a": number, "c": "deadbeef"} for number in range(9)])
    write(Path("short.jsonl"), [{"text": "so short"}] * 9)
    write(Path("unlabelled.jsonl"), [{"text": text} for text in TEXTS])
    write(Path("ids.jsonl"), [{"text": text, "label": number} for number, text in enumerate(TEXTS)])
    write(Path("one.jsonl"), [{"text": text, "label": "x"} for text in TEXTS])
    write(Path("booleans.jsonl"), [{"text": text, "label": bool(number % 2)} for number, text in enumerate(TEXTS)])
    Path("semicolons.csv").write_text("text;label\n" + "".join(f"{text};a\n{text};b\n" for text in TEXTS))
    Path("mixed").mkdir()
    write(Path("mixed/a.jsonl"), [{"text": text} for text in TEXTS])
    write(Path("mixed/b.jsonl"), [{"body": text} for text in TEXTS[:9]])
    with pytest.raises(error, match=message) as caught:
        run_command(["init", *arguments])
    assert caught.value.fix  # type: ignore[attr-defined]
    assert not Path("my.yaml").exists()


def test_the_length_fits_the_text_the_model_and_the_devices() -> None:
    demo, large = ModelProperties("demo:bert-tiny", 512, 4.4e6, False), ModelProperties("large", 8192, 350e6, False)
    little, much = DraftLength.of(50_000, demo, False), DraftLength.of(10**9, demo, False)
    assert little.max_steps is None
    assert little.epochs > much.epochs == 1
    assert little.sequence < much.sequence == 512
    assert much.max_steps is not None
    assert much.max_steps < much.steps_per_epoch
    bounded = DraftLength.of(10**9, large, False).max_steps
    assert bounded is not None
    assert bounded < much.max_steps
    assert DraftLength.of(10**9, large, True).max_steps is None
    assert DraftLength.of(10**9, ModelProperties("short", 128, 1e6, False), True).sequence == 128


def test_a_decoder_gets_the_causal_objective() -> None:
    folder = Path("gpt")
    folder.mkdir()
    about = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": 256, "n_embd": 64, "n_layer": 2}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "tokenizer.json").write_text("{}")
    write(Path("a.jsonl"), [{"text": text} for text in TEXTS])
    config = written("a.jsonl", "--model", "gpt")
    assert config.objective.kind == "causal"
    assert config.training.sequence_length <= 256


def test_general_text_is_measured() -> None:
    write(Path("a.jsonl"), [{"text": text} for text in TEXTS])
    write(Path("news.jsonl"), [{"title": "News", "body": text.upper()} for text in TEXTS])
    Path("more.txt").write_text("\n".join(TEXTS))
    evaluation = written("a.jsonl", "--general", "news.jsonl").evaluation
    assert evaluation.general_paths == "news.jsonl"
    assert evaluation.general_text_field == "body"
    assert written("a.jsonl", "--general", "news.jsonl", "more.txt", "--force").evaluation.general_paths == [
        "news.jsonl",
        "more.txt",
    ]
    with pytest.raises(DataError, match=r"missing\.jsonl"):
        written("a.jsonl", "--general", "missing.jsonl", "--force")


def test_without_a_model_it_uses_the_demo_model_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("odd 'name: #1.jsonl"), [{"text: #": text} for text in TEXTS])
    config = written("odd 'name: #1.jsonl")
    assert config.model.path == "demo:bert-tiny"
    assert config.corpus.paths == "odd 'name: #1.jsonl"
    assert config.corpus.text_field == "text: #"
    assert "# A small BERT" in Path("my.yaml").read_text()
    shown = capsys.readouterr()
    assert "dontstop chain plan --config my.yaml" in shown.err
    assert json.loads(shown.out)["metrics"]["documents"] == 300


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("job", ["dapt", "tapt"])
def test_the_configuration_runs_unchanged(job: str, tmp_path: Path, tiny_bert: Path) -> None:
    folder = write_task(tmp_path / "topics", train=60, dev=20, test=20)
    text = write(tmp_path / "text.jsonl", [{"text": text} for text in TEXTS[:60]])
    named = [text] if job == "dapt" else []
    run_command(["init", *named, "--task", folder, "--model", str(tiny_bert)])
    assert yaml.safe_load(Path("my.yaml").read_text())["training"]["sequence_length"] == 128
    ran = Job(tmp_path / "out", ["--config", "my.yaml", "--training.max_steps", "2"], f"{job}.py")
    assert ran.end() == 0, ran.err
    losses = json.loads(ran.out.splitlines()[-1])["metrics"]["losses"]
    assert losses["domain"]["change"]["low"] is not None


def test_a_folder_of_documents_is_described_with_what_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    pages = {f"{number}.html": page(paragraphs(3, number)) for number in range(20)}
    files = {**pages, "copy.html": pages["3.html"], "again.html": pages["5.html"], "a.docx": docx(paragraphs(3, 99))}
    documents(Path("files"), {**files, "scan.pdf": scanned_pdf(), "README.md": "about the folder"})
    config = written("files")
    assert config.corpus.text_field == "text"
    assert config.corpus.max_bad_fraction == 0.1  # 1 of 24 documents cannot be read
    assert config.corpus.deduplicate == "exact"
    said = capsys.readouterr().err
    assert "text: 23 documents" in said
    assert "one document per file: 22 html, 1 docx, 1 pdf" in said
    assert "1 of 24 records cannot be read: document is a scan without text 1" in said
    assert "languages en 100%; duplicates 9%" in said
    assert "9% of the documents are duplicates: remove them with corpus.deduplicate: exact" in said

"""Tests that stage `prepare` gives the same tokens on Ray for any files and chunk sizes, and after a failed run."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from adapt.config import CorpusConfig
from adapt.corpus import prepare_corpus as module
from adapt.corpus.files.manifest import Manifest, Part, build_manifest
from adapt.corpus.heldout import Measured
from adapt.corpus.prepare_corpus import prepare
from adapt.corpus.token_shards import TokenStream
from adapt.model.locate import Pretrained
from adapt.runner.digest import Digests
from adapt.support.errors import DataError
from adapt.support.schema import HELDOUT_GLOB, SHARD_GLOB
from tests.samples import is_heldout, sentences

TEXTS = sentences(600, seed=1)
CORPUS = CorpusConfig(heldout_fraction=0.1, max_bad_fraction=0.05)

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def pretrained(tiny_bert: Path) -> Pretrained:
    return Pretrained(tiny_bert, tiny_bert)


def jsonl(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def run(
    paths: str | list[str],
    folder: Path,
    pretrained: Pretrained,
    corpus: CorpusConfig = CORPUS,
    measured: Sequence[Path] = (),
) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    corpus = replace(corpus, paths=paths)
    manifest = build_manifest(corpus, Digests(folder.parent / "digests.json"))
    return prepare(manifest, corpus, pretrained, folder, measured=measured)


def documents(folder: Path, pattern: str) -> list[list[int]]:
    stream = TokenStream.open(folder, pattern)
    return [stream.document(number).tolist() for number in range(stream.documents)]


def tokenized(texts: list[str], folder: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text)["input_ids"] for text in texts]


def expected(texts: list[str], folder: Path, heldout: bool) -> list[list[int]]:
    return tokenized([text for text in texts if is_heldout(text, CORPUS.heldout_fraction) is heldout], folder)


def check_documents(folder: Path, tiny_bert: Path) -> None:
    assert documents(folder, SHARD_GLOB) == expected(TEXTS, tiny_bert, heldout=False)
    assert documents(folder, HELDOUT_GLOB) == expected(TEXTS, tiny_bert, heldout=True)


def test_prepare_writes_documents_and_counts(
    tmp_path: Path, pretrained: Pretrained, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"text": text}) for text in TEXTS]
    lines[500:500] = ["", '{"text": "short"}', '{"text": null}', "broken", r'{"text": "cut in two \ud83d by a limit"}']
    lines[300:300] = [json.dumps({"text": "1234567890 " * 9}), '{"text": "   "}', '{"text": "short too"}', "broken"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    metrics = run(str(tmp_path / "a.jsonl"), tmp_path / "out", pretrained)

    kept = [*TEXTS[:500], "cut in two  by a limit", *TEXTS[500:]]
    train, heldout = (expected(kept, pretrained.model, out) for out in (False, True))
    assert documents(tmp_path / "out", SHARD_GLOB) == train
    assert documents(tmp_path / "out", HELDOUT_GLOB) == heldout
    assert metrics.pop("legibility").unknown_words == 0
    assert metrics == {
        "train_documents": len(train),
        "train_tokens": sum(map(len, train)),
        "heldout_documents": len(heldout),
        "heldout_tokens": sum(map(len, heldout)),
        "characters": sum(map(len, kept)),
        "dropped": {"too few letters": 1, "empty": 1, "too short": 2},
        "changed": {},
        "bad": {"malformed JSON": 2, "no text": 1},
        "evaluation_texts": {},
    }
    said = capsys.readouterr().err
    assert f"prepare: 4 of {len(TEXTS) + 5} documents dropped: " in said
    assert f"(in {tmp_path}/a.jsonl)" in said
    assert f"skipped 3 of {len(TEXTS) + 8} records" in said  # the empty line does not count as a record
    assert f"2 malformed JSON (first: {tmp_path}/a.jsonl, record 304)" in said


def test_small_chunks_and_leftovers_of_a_failed_run_give_the_same_tokens(
    tmp_path: Path, pretrained: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    (out / "folder").mkdir(parents=True)
    for leftover in ("train-000000-000000.arrow", "train-000007-000000.arrow", ".train-000000-000001.arrow.42"):
        (out / leftover).write_bytes(b"half")
        (out / "folder" / leftover).write_bytes(b"half")
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 5000)
    path = jsonl(tmp_path / "a.jsonl", TEXTS)
    metrics = run(path, out, pretrained)

    check_documents(out, pretrained.model)
    shards = sorted(file.name for file in out.glob(SHARD_GLOB))
    characters = sum(map(len, TEXTS))
    assert characters // 5200 <= len(shards) <= characters // 5000 + 1
    assert shards == [f"train-000000-{chunk:06d}.arrow" for chunk in range(len(shards))]
    assert {file.name for file in out.iterdir()} == {*shards, *(name.replace("train", "heldout") for name in shards)}

    content = {file.name: file.read_bytes() for file in out.iterdir()}
    assert run(path, out, pretrained) == metrics
    assert {file.name: file.read_bytes() for file in out.iterdir()} == content


def test_files_of_several_formats_give_the_same_tokens(
    tmp_path: Path, pretrained: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 3000)
    paths = [str(tmp_path / name) for name in ("z.jsonl", "empty.jsonl", "b.parquet", "c.txt", "a.jsonl.gz")]
    jsonl(Path(paths[0]), TEXTS[:250])
    Path(paths[1]).touch()
    pq.write_table(pa.table({"text": TEXTS[250:251]}), paths[2])
    Path(paths[3]).write_text("\n\n".join(TEXTS[251:400]))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[400:])
    Path(paths[4]).write_bytes(gzip.compress(lines.encode()))
    metrics = run(paths, tmp_path / "out", pretrained)
    check_documents(tmp_path / "out", pretrained.model)
    assert metrics["dropped"] == {"empty": 148}  # 148 lines of c.txt are blank


def test_too_many_bad_records_are_refused(
    tmp_path: Path, pretrained: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message lists each reason with its count and its first record in corpus order.

    The order in which workers finish must not change the message.
    """
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 200)
    long, short = tmp_path / "long.jsonl", tmp_path / "short.jsonl"
    jsonl(long, TEXTS[:40])
    long.write_text(long.read_text() + 'broken\n{"body": 1}\n')
    short.write_text(f'broken\n{{"text": 5}}\n{json.dumps({"text": TEXTS[0]})}\n')
    with pytest.raises(DataError) as caught:
        run([str(long), str(short)], tmp_path / "out", pretrained)
    assert caught.value.what == (
        f"4 of 45 records are unreadable: 2 malformed JSON (first: {long}, record 41); "
        f"1 no text (first: {long}, record 42); 1 text is not a string (first: {short}, record 2)"
    )
    assert "corpus.max_bad_fraction (now 0.05)" in caught.value.fix


def test_a_file_that_is_broken_in_the_middle_is_named(tmp_path: Path, pretrained: Pretrained) -> None:
    """A gzip file that was cut in half is refused by name.

    The check before the job reads only the first record, so a Ray task finds the damage.
    """
    good, broken = jsonl(tmp_path / "a.jsonl", TEXTS), tmp_path / "b.jsonl.gz"
    whole = gzip.compress(Path(good).read_bytes())
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"b\.jsonl\.gz is broken: .* ended before") as caught:
        run([good, str(broken)], tmp_path / "out", pretrained)
    # the error is not of the subclass that Ray creates, which would print a stack trace
    assert type(caught.value) is DataError
    assert "corpus.paths" in caught.value.fix


def test_a_corpus_that_is_empty_after_cleaning_is_refused(tmp_path: Path, pretrained: Pretrained) -> None:
    path = jsonl(tmp_path / "a.jsonl", ["too short", "", "1234567890 " * 5, "short too"])
    with pytest.raises(DataError, match="the corpus is empty after cleaning") as caught:
        run(path, tmp_path / "out", pretrained)
    assert "2 too short, 1 empty, 1 too few letters" in caught.value.what
    assert path in caught.value.what


def test_a_corpus_of_unknown_tokens_is_refused(tmp_path: Path, pretrained: Pretrained) -> None:
    japanese = ["これは日本語で書かれた文ですから、この語彙では一語も読めません。"] * 20
    path = jsonl(tmp_path / "a.jsonl", [*TEXTS[:10], *japanese])
    with pytest.raises(DataError, match=r"\d\d% of the tokens are unknown to the tokenizer"):
        run(path, tmp_path / "out", pretrained)


def test_prepare_measures_legibility_and_warns(
    tmp_path: Path, pretrained: Pretrained, capsys: pytest.CaptureFixture[str]
) -> None:
    some = [f"{text} \uc774 \uc5f0\uad6c" for text in sentences(100, seed=3)]
    found = run(jsonl(tmp_path / "a.jsonl", some), tmp_path / "some", pretrained)
    known = found["legibility"]
    assert known.words > 500
    assert 0.05 < known.unknown_share == known.unknown_words / known.words < 0.5
    shown = capsys.readouterr().err
    assert (
        f"prepare: {known.unknown_share:.1%} of the words have a part that the tokenizer does not know (limit" in shown
    )
    plain = run(jsonl(tmp_path / "b.jsonl", sentences(100, seed=3)), tmp_path / "plain", pretrained)
    assert plain["legibility"].unknown_words == 0
    assert "the tokenizer does not know" not in capsys.readouterr().err


def test_documents_measured_elsewhere_are_left_out_and_counted(tmp_path: Path, pretrained: Pretrained) -> None:
    """If a corpus is held out as a whole, its documents are dropped from other corpora and counted.

    The copies differ in case and spacing. Copies in the held-out share of their own corpus are dropped too.
    """
    general, out = tmp_path / "general", tmp_path / "out"
    run(jsonl(tmp_path / "a.jsonl", TEXTS[:40]), general, pretrained, replace(CORPUS, heldout_fraction=1.0))
    copies = [text.upper().replace(" ", "  ") for text in TEXTS[20:60]]
    path = jsonl(tmp_path / "b.jsonl", [*TEXTS[100:300], *copies])
    metrics = run(path, out, pretrained, measured=[general])
    kept = [*TEXTS[100:300], *copies[20:]]
    assert metrics["dropped"] == {"measured": 20}
    assert documents(out, SHARD_GLOB) == expected(kept, pretrained.model, heldout=False)
    assert documents(out, HELDOUT_GLOB) == expected(kept, pretrained.model, heldout=True)
    assert Measured.of([general, out]).count_in([out]) == 0

    with pytest.raises(DataError, match="no document is left to train on, because") as caught:
        run(jsonl(tmp_path / "c.jsonl", TEXTS[:20]), tmp_path / "again", pretrained, measured=[general])
    assert "20 of its documents are also in a text on which the loss is measured" in caught.value.what
    assert all(name in str(caught.value) for name in ("evaluation.general_paths", "mixture.replay_paths"))


def test_prepare_reads_docstrings_of_a_package(tmp_path: Path, pretrained: Pretrained) -> None:
    """Prepares a package of 240 modules. One module cannot be parsed, and 10 are missing.

    The package has more modules than one task reads (100).
    """
    package = tmp_path / "site" / "package"
    package.mkdir(parents=True)
    texts = TEXTS[:230]
    for number, text in enumerate(texts):
        (package / f"m{number:03d}.py").write_text(f'"""{text}"""\n' if number != 117 else "broken (")
    record = tmp_path / "site" / "package-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    # the last 10 modules do not exist
    record.write_text("".join(f"package/m{number:03d}.py,,\n" for number in range(240)))
    corpus = replace(CORPUS, source="docstrings")
    (tmp_path / "out").mkdir()
    metrics = prepare(Manifest([Part(str(record), 0, "")]), corpus, pretrained, tmp_path / "out")
    kept = [text for number, text in enumerate(texts) if number != 117]
    assert documents(tmp_path / "out", SHARD_GLOB) == expected(kept, pretrained.model, heldout=False)
    assert metrics["train_documents"] + metrics["heldout_documents"] == 229
    assert metrics["bad"] == {}

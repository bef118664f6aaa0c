"""Creates worlds: small random corpora in files of every format, with a random configuration of a job that reads them.

A seed determines a world. The sources, general and replayed text, evaluation sets, pools and splits of tasks draw
from the same small set of texts and files, so that they overlap in all possible ways.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.samples import WORDS

KINDS = ("dapt",) * 6 + ("tapt",) * 3 + ("sequence", "evaluate", "similarity")
SUFFIXES = (".jsonl",) * 4 + (".json", ".csv", ".tsv", ".txt", ".txt", ".parquet", ".arrow")
COMPRESSIONS = ("",) * 5 + (".gz", ".xz", ".bz2")
PACK = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
BROKEN = ("broken", '{"body": "no text at all"}', '{"text": 5}', "[1, 2]")
INVISIBLE = ("\u00ad", "\u200b", "\u2060")


@dataclass(frozen=True)
class World:
    """A set of files, and a configuration that names them with the prefix `@/`."""

    seed: int
    kind: str
    files: dict[str, bytes]
    """Contents of the files, keyed by file name."""
    values: dict[str, Any]
    """Values of fields, keyed by dotted name."""

    def lay(self, folder: Path) -> None:
        """Writes the world's files to a folder and deletes all other files.

        Files that are overwritten keep their old modification times.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if file.name not in self.files:
                file.unlink()
        for name, content in self.files.items():
            file = folder / name
            times = file.stat() if file.exists() else None
            file.write_bytes(content)
            if times:
                os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def filled(self, folder: Path) -> dict[str, Any]:
        """Returns the configuration, with the prefix `@/` of paths replaced by a folder."""
        return {name: _filled(value, folder) for name, value in self.values.items()}


def _filled(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, folder) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, folder) for each in value]
    return value.replace("@/", f"{folder}/") if isinstance(value, str) else value


def world(seed: int) -> World:
    """Returns the world that belongs to a seed."""
    draw = Random(seed)
    texts = some_texts(draw, draw.choice((3, 20, 60)))
    names = [f"{draw.choice('abcxyz')}{n}" for n in range(draw.randint(2, 5))]
    files = dict(_file(draw, name, texts) for name in names)
    kind = draw.choice(KINDS)
    sets = {f"set{n}.jsonl": rendered(draw, ".jsonl", draw.choices(texts, k=n + 1)) for n in range(2)}
    values = _values(draw, kind, list(files))
    splits, tasks = _tasks(draw, kind, texts, list(files))
    return World(seed, kind, files | sets | splits, values | tasks)


def some_texts(draw: Random, count: int) -> list[str]:
    """Returns texts, some of which are modified copies of others."""
    texts: list[str] = []
    for number in range(count):
        texts.append(_variant(draw, draw.choice(texts)) if texts and draw.random() < 0.35 else _text(draw, number))
    return texts


def _text(draw: Random, number: int) -> str:
    if draw.random() < 0.08:
        return draw.choice(("", "too short", "1234567890 " * 3, "  ", "<mask> and <s> stand in this text of a page"))
    words = draw.choices(WORDS, k=draw.choice((4, 9, 14, 40)))
    return " ".join([*words, "".join(draw.choices("bcdfghjkl", k=6)), str(number)])


def _variant(draw: Random, text: str) -> str:
    """Returns a copy of a text with a change that is typical of copies on the web."""
    words = text.split() or [""]
    match draw.randrange(8):
        case 0:
            return text.upper()
        case 1:
            return f"  {text.replace(' ', '   ')} "
        case 2:
            return text.replace("a", f"a{draw.choice(INVISIBLE)}", 1)
        case 3:
            return "".join(chr(ord(c) + 0xFEE0) if "a" <= c <= "z" else c for c in text)  # full width
        case 4:
            return " ".join([*words[:-1], "different"])  # The result is a near copy if the text has many words.
        case 5:
            return f"{text} {' '.join(draw.choices(WORDS, k=5))}"
        case 6:
            return text.replace(" ", "\u00a0", 1)
    return text


def _file(draw: Random, name: str, texts: list[str]) -> tuple[str, bytes]:
    suffix = draw.choice(SUFFIXES)
    packing = draw.choice(COMPRESSIONS) if suffix not in (".parquet", ".arrow") else ""
    chosen = [draw.choice(texts) for _ in range(draw.choice((0, 1, 5, 5, 30, 30, 60)))]
    broken = draw.random() < 0.15
    content = rendered(draw, suffix, chosen, broken)
    return f"{name}{suffix}{packing}", PACK[packing](content) if packing else content


def rendered(draw: Random, suffix: str, texts: list[str], broken: bool = False) -> bytes:
    """Encodes texts in the format of a file suffix. If `broken`, some jsonl records contain no text."""
    if suffix in (".parquet", ".arrow"):
        table, sink = pa.table({"text": pa.array(texts, pa.string())}), io.BytesIO()
        if suffix == ".parquet":
            pq.write_table(table, sink)
        else:
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        return sink.getvalue()
    if suffix in (".csv", ".tsv"):
        out = io.StringIO()
        csv.writer(out, delimiter="," if suffix == ".csv" else "\t").writerows([["text"], *([text] for text in texts)])
        return out.getvalue().encode()
    end = draw.choice(("\n", "\n\n", "\r\n"))
    lines = texts if suffix == ".txt" else [json.dumps({"text": text, "id": n % 7}) for n, text in enumerate(texts)]
    if broken and suffix != ".txt":
        lines = [*lines, draw.choice(BROKEN)]
    return (end.join(lines) + draw.choice(("", end))).encode()


def paths(draw: Random, names: list[str]) -> str | list[str]:
    """Chooses files at random. Returns one path, or a list of paths."""
    chosen = draw.sample(names, draw.randint(1, min(3, len(names))))
    return f"@/{chosen[0]}" if len(chosen) == 1 and draw.random() < 0.5 else [f"@/{name}" for name in chosen]


def _values(draw: Random, kind: str, names: list[str]) -> dict[str, Any]:
    length = draw.choice((16, 64))
    values: dict[str, Any] = {
        "seed": draw.choice((0, 1, 2**40)),
        "corpus.max_bad_fraction": draw.choice((0.01, 0.5, 1.0)),
        "corpus.heldout_fraction": draw.choice((0.0, 0.1, 0.5, 0.9)),
        "corpus.deduplicate": draw.choice(("none", "none", "exact", "near")),
        "corpus.text_unit": draw.choice(("line", "line", "paragraph")),
        "objective.kind": draw.choice(("mlm", "mlm", "whole_word", "span")),
        "training.global_batch_size": draw.choice((1, 4, 8)),
        "training.sequence_length": length,
        "evaluation.sequence_length": length,
        **draw.choice(({"training.max_steps": draw.choice((1, 30))}, {"training.epochs": draw.choice((0.5, 2.0))})),
    }
    if draw.random() < 0.5:
        values["corpus.cleaning"] = draw.choice(
            ([], ["fix_unicode"], [{"length": {"min_words": 5}}, "letters"], ["pii"])
        )
    several = kind in ("sequence", "similarity") or (kind != "tapt" and draw.random() < 0.4)
    if several:
        values |= _sources(draw, kind, names)
    elif kind != "tapt":
        values["corpus.paths"] = paths(draw, names)
    if kind == "dapt" and not several and draw.random() < 0.3:
        values |= {"corpus.streaming": True, "training.max_steps": 1000, "training.epochs": None}
    if draw.random() < 0.4:
        values["evaluation.general_paths"] = paths(draw, names)
    if draw.random() < 0.4 and "corpus.streaming" not in values:
        values |= {"mixture.replay_paths": paths(draw, names), "mixture.replay_fraction": draw.choice((0.0, 0.1, 0.5))}
    if draw.random() < 0.3:
        sets = [{"name": f"set{n}", "paths": f"@/set{n}.jsonl"} for n in range(draw.randint(1, 2))]
        values |= {"corpus.decontaminate": sets, "corpus.decontaminate_ngram": draw.choice((5, 13))}
    if kind == "sequence":
        values |= {"method.kind": draw.choice(("das", "plain")), "training.epochs": None, "training.max_steps": 3}
    return {name: value for name, value in values.items() if value is not None}


def _sources(draw: Random, kind: str, names: list[str]) -> dict[str, Any]:
    weighted, count = draw.random() < 0.5, draw.randint(1 if kind == "dapt" else 2, 4)
    sources = [
        {
            "name": f"s{number}",
            "paths": paths(draw, names),
            **({"weight": draw.choice((0.0, 0.001, 1.0, 3.0))} if weighted else {}),
        }
        for number in range(count)
    ]
    if weighted:
        return {"corpus.sources": sources}
    way = draw.choice(({}, {"mixture.order": "sequential"}, {"mixture.temperature": draw.choice((0.3, 5.0))}))
    return {"corpus.sources": sources, **way}


def _tasks(draw: Random, kind: str, texts: list[str], names: list[str]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Returns the files of labelled tasks, and the values of the fields that refer to these files."""
    if kind not in ("tapt", "sequence", "evaluate"):
        return {}, {}
    files, tasks = dict[str, bytes](), []
    for number in range(draw.randint(1, 2) if kind != "sequence" else 1):
        task: dict[str, Any] = {"name": f"s{number}", "max_bad_fraction": 1.0}
        for split in ("train", "dev", "test"):
            own = [_text(draw, 1000 + n) for n in range(draw.choice((0, 2, 8)))]
            chosen = [*own, *(draw.choice(texts) for _ in range(draw.choice((2, 4, 20))))]
            lines = [json.dumps({"text": text, "label": "ab"[n % 2], "id": n}) for n, text in enumerate(chosen)]
            files[f"task{number}-{split}.jsonl"] = "\n".join(lines).encode()
            task[split] = f"@/task{number}-{split}.jsonl"
        tasks.append(task)
    first = {f"task.{name}": value for name, value in tasks[0].items()}
    values = {**first, "tasks": tasks[1:], "finetune.seeds": [0]}
    if kind == "tapt":
        ways = ({}, {"tapt.transductive": True}, {"tapt.batch_examples": None}, {"tapt.pool_paths": paths(draw, names)})
        values |= {"training.epochs": 1.0, **draw.choice(ways)}
        if "tapt.pool_paths" in values and draw.random() < 0.5:
            values["select.pool_paths"] = values.pop("tapt.pool_paths")
            values["select.per_example"] = draw.choice((1, 2))
    return files, values

"""Tests that no row of a csv or tsv file is lost in a quoted cell.

Each row is read or counted as bad, or the file is refused with a line number.
"""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from adapt.config import TaskConfig
from adapt.corpus.files.records import Reading, read_objects, read_records
from adapt.support.errors import DataError
from adapt.task.labelled_examples import check_split

ROWS = 40


def words(number: int) -> str:
    return f"this is document number {number} about lobsters and the sea"


def write(path: Path, text: Callable[[int], str], label: Callable[[int], str] | None = lambda n: "ab"[n % 2]) -> Path:
    """Writes texts and labels without the csv library, so that quotation marks in them are not escaped."""
    mark = "\t" if path.suffix == ".tsv" else ","
    lines = [mark.join([text(number), *([label(number)] if label else [])]) for number in range(ROWS)]
    path.write_text("\n".join([mark.join(["text", *(["label"] if label else [])]), *lines, ""]))
    return path


def written(path: Path, rows: Sequence[Sequence[str]], quoting: int = csv.QUOTE_MINIMAL) -> Path:
    """Writes rows with the csv library, which puts quotation marks around cells that contain quotation marks."""
    out = io.StringIO()
    csv.writer(out, delimiter="\t" if path.suffix == ".tsv" else ",", quoting=quoting).writerows(rows)  # type: ignore[arg-type]
    path.write_bytes(out.getvalue().encode())
    return path


def read(path: Path) -> list[str]:
    return list(read_records(path, Reading()))


QUOTED: dict[str, Callable[[int], str]] = {
    "never closed": lambda n: f'"{words(n)}' if n == 20 else words(n),
    "closed some rows below": lambda n: f'"{words(n)}' if n % 10 == 0 else f'{words(n)}"' if n % 10 == 4 else words(n),
    "one pair": lambda n: f'"{words(n)}' if n == 7 else f'{words(n)}"' if n == 12 else words(n),
    "the next row closes": lambda n: f'"{words(n)}' if n % 2 == 0 else f'{words(n)}"',
    "speech": lambda n: f'"{words(n)}," she said' if n % 3 == 0 else words(n),
    "one of speech": lambda n: f'"Lobsters" {words(n)}' if n == 3 else f'"{words(n)}' if n == 9 else words(n),
}


@pytest.mark.parametrize("name", QUOTED)
def test_quotes_are_letters_in_tsv(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "train.tsv", QUOTED[name])
    assert read(path) == [QUOTED[name](number) for number in range(ROWS)]
    assert len(check_split(TaskConfig(train=str(path)), "train").examples) == ROWS
    assert [line for line, _ in read_objects(path)] == list(range(2, ROWS + 2))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("never closed", 22),
        ("closed some rows below", 2),
        ("one pair", 9),
        ("one of speech", 11),
    ],
)
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_rows_lost_inside_a_quote_are_refused_in_csv(tmp_path: Path, name: str, line: int, columns: int) -> None:
    labels = {1: None, 2: lambda n: "ab"[n % 2], 3: lambda n: f"{n},x{n}"}
    path = write(tmp_path / "train.csv", QUOTED[name], labels[columns])
    if columns == 3:
        path.write_text(path.read_text().replace("text,label", "text,number,key"))
    for reader in (lambda: read(path), lambda: list(read_objects(path))):
        with pytest.raises(DataError, match=rf"train\.csv, line {line}: a quote begins a cell that") as caught:
            reader()
        assert "write it again with" in caught.value.fix
    if columns == 2:
        with pytest.raises(DataError, match=rf"line {line}: a quote"):
            check_split(TaskConfig(train=str(path)), "train")


def test_rows_with_a_quote_closed_in_every_second_one_are_recognised_by_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", QUOTED["the next row closes"], lambda n: "ab"[n // 2 % 2])
    with pytest.raises(DataError, match="line 2: a quote begins a cell that ends 1 line below"):
        read(path)


def test_text_after_a_closing_quote_is_a_bad_row_in_csv(tmp_path: Path) -> None:
    records = read(write(tmp_path / "a.csv", lambda n: f'"{words(n)}" she said' if n == 3 else words(n)))
    assert len(records) == ROWS
    assert records[3] == "malformed CSV: text follows a closing quote"


MULTI = [
    f'She said "no {number}", and left.\nThen, a day later, she came back.\n\nThe end' if number % 2 else words(number)
    for number in range(ROWS)
]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("columns", [1, 2])
def test_cells_over_several_lines_as_a_library_writes_them(
    tmp_path: Path, suffix: str, quoting: int, columns: int
) -> None:
    rows = [["text", "label"], *([text, "ab"[number % 2]] for number, text in enumerate(MULTI))]
    path = written(tmp_path / f"a{suffix}", [row[:columns] for row in rows], quoting)
    assert read(path) == MULTI


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_cells_of_two_short_lines_next_to_labels(tmp_path: Path, suffix: str) -> None:
    texts = [f"Hello {number}, world\nbye" for number in range(ROWS)]
    rows = [["text", "label"], *([text, "ab"[number % 2]] for number, text in enumerate(texts))]
    path = written(tmp_path / f"a{suffix}", rows)
    if suffix == ".csv":
        assert read(path) == texts
    path = written(tmp_path / f"b{suffix}", rows, csv.QUOTE_ALL)
    assert read(path) == texts


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_empty_cells_as_a_library_writes_them(tmp_path: Path, suffix: str) -> None:
    assert read(written(tmp_path / f"a{suffix}", [["text"], ["one"], [""], ["two"]])) == ["one", "", "two"]


def test_lines_that_may_be_rows_or_one_cell_are_accepted_where_all_cells_are_in_quotes(tmp_path: Path) -> None:
    texts = ["one line", "two\nlines", "three\nshort\nlines"]
    with pytest.raises(DataError, match=r"line 3: a quote begins a cell that ends 1 line below, .* look like rows"):
        read(written(tmp_path / "a.csv", [["text"], *([text] for text in texts)]))
    assert read(written(tmp_path / "b.csv", [["text"], *([text] for text in texts)], csv.QUOTE_ALL)) == texts


def test_a_valid_file_with_rows_lost_in_one_cell_is_refused(tmp_path: Path) -> None:
    rows = [["text", "label"], *([text, "ab"[number % 2]] for number, text in enumerate(MULTI))]
    path = written(tmp_path / "a.csv", rows)
    with path.open("a") as file:
        file.write(f'"{words(0)},a\n' + "".join(f"{words(number)},b\n" for number in range(5)) + f'{words(6)}",a\n')
    with pytest.raises(DataError, match=r"these lines look like rows"):
        read(path)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_two_columns_of_the_same_name_are_refused(tmp_path: Path, suffix: str) -> None:
    mark = "," if suffix == ".csv" else "\t"
    path = tmp_path / f"a{suffix}"
    path.write_text("text,label,text,,\na,b,c,,\n".replace(",", mark))
    for reader in (lambda: read(path), lambda: list(read_objects(path))):
        with pytest.raises(DataError, match=rf"a\{suffix} has two columns named 'text'"):
            reader()


def test_a_long_cell_over_many_lines_is_one_record(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", [["text", "label"], ["before", "a"], ["long,\n" * 1000, "a"], ["after", "b"]])
    records = list(read_records(path, Reading(max_bytes=2000)))
    assert records == ["before", "longer than corpus.max_record_mib", "after"]


@pytest.mark.parametrize(
    ("name", "header", "says", "fix"),
    [
        ("a.csv", "text;label", "a.csv has semicolons between its values", "sep=';'"),
        ("a.csv", "text\tlabel", "a.csv has tabs between its values", "ends in .tsv"),
        ("a.tsv", "text,label", "a.tsv has commas between its values", "ends in .csv"),
        ("a.csv", "text|label", "a.csv has vertical bars between its values", "pandas"),
    ],
)
def test_other_delimiters_between_values_are_named(tmp_path: Path, name: str, header: str, says: str, fix: str) -> None:
    (tmp_path / name).write_text(f"{header}\n{header}\n")
    with pytest.raises(DataError, match=says) as caught:
        read(tmp_path / name)
    assert fix in caught.value.fix

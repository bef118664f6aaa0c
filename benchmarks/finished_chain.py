"""Functions of the programs that show a finished chain: they read its results, print tables and write raw values."""

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from adapt.chain.chain_file import ChainFile, read_chain, read_command
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import build_chain, study
from adapt.show.blocks import Section, Table
from adapt.show.renderers import render_markdown
from adapt.show.report.study import Study


def read_finished(arguments: Sequence[str]) -> tuple[ChainFile, Study]:
    """Returns a chain and its results so far.

    Args:
        arguments: the arguments of `dontstop chain report`.
    """
    command = read_command(["report", *arguments])
    chain = read_chain(command.file, command.let, command.common)
    return chain, study(chain.name, chain.baseline, build_chain(expand_chain(chain, command.only)))


def split_file(option: str, arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Returns the file that a program's own option names, None without the option, and the other arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument(option, dest="file", type=Path)
    own, others = parser.parse_known_args(arguments)
    return own.file, others


def print_tables(finished: Study, title: str, tables: Iterable[Table | None]) -> None:
    """Prints a section of tables in Markdown, with the number of stages. Leaves out tables that are None."""
    about = f"{len(finished.entries)} stages, {len(finished.missing)} not run"
    print(render_markdown(finished.name, about, [Section(title, [table for table in tables if table])]))


def write_csv(header: Sequence[str], rows: Iterable[Sequence[object]], file: Path) -> None:
    """Writes rows of values as CSV."""
    with file.open("w", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows([header, *rows])

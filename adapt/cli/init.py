"""Implements `dontstop init`, which writes a first configuration for a user's files."""

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import has_magic
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import yaml

from adapt.cli.draft_length import MEDIUM_MODEL, SMALL_MODEL, TAPT_EXAMPLES, DraftLength, ModelProperties, tapt_examples
from adapt.cli.inspect_files import (
    CorpusProperties,
    TaskProperties,
    inspect_corpus,
    inspect_task,
    plain_name,
    split_paths,
)
from adapt.config import CorpusConfig, FinetuneConfig
from adapt.corpus import heldout, profile_sample, text_profile
from adapt.corpus.files import formats, manifest, records
from adapt.corpus.files.filesystem import is_url
from adapt.job.job_text import TextOutlook, legibility_words
from adapt.model.demo_checkpoint import NAME as DEMO
from adapt.model.tokenize.text_tokenizer import quick_tokenizer
from adapt.runner.files import file_mode, make_folder, storage_errors, write_atomically
from adapt.support.errors import ConfigError, DataError
from adapt.terminal.console import finish, log
from adapt.train.capacity.device import has_gpu

HELP = """\
dontstop init TEXT... [--task TRAIN [DEV TEST]] [--general TEXT...] [--model PATH_OR_ID] [--out my.yaml]
              [--force]

Looks at your files and writes a configuration for them that runs without changes.

TEXT is text of the domain: files, folders or globs of .jsonl, .csv, .tsv, .txt (also .gz, .zst, .xz, .bz2), .parquet or
.arrow; with pip install 'dontstop[documents]' also .html, .pdf, .docx, .epub, .md, .rst, .tex and .warc.gz. --task
names the labelled examples of a task: the files of train, dev and test, or a folder that holds them. If dev or test is
missing, it gets a tenth of the train examples, and the splits are written to new files. --general names text from
outside the domain: the loss on this text before and after training shows what the model forgets. --model is a Hugging
Face id or a folder; the default is the small demo model. --force replaces files that exist."""
OPTIONS = ("task", "general", "model", "out", "force", "help")
"""Options of `dontstop init`, for shell completion."""
_SMALL_RATE = "5.0e-4"
"""Learning rate of models with fewer than SMALL_MODEL parameters."""
_MEDIUM_RATE = "1.0e-4"
"""Learning rate of fine-tuning on few labels for models with fewer than MEDIUM_MODEL parameters. At the default, MiniLM
with 22 million parameters learns nothing in 300 steps on 100 labels of ChemProt (docs/science/dapt-tapt.md)."""
_DEV_SHARE = 0.1
"""Share of the train split that becomes the dev split if there is none. A missing test split gets the same share."""
_NAME_SPLITS = "add examples, or name the files of all splits: --task TRAIN DEV TEST"


def main(arguments: Sequence[str]) -> None:
    """Inspects the files named on a command line, and writes a configuration for them.

    Args:
        arguments: arguments of `dontstop init`.

    Raises:
        ConfigError: the command line is wrong, or the file to write exists.
        DataError: a file is missing or unreadable, or has no text or no labels.
        ModelError: the model does not exist.
    """
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(HELP)
        return
    options = _read(arguments)
    out = Path(options.out)
    inputs = _input_files(options)
    _check_free(out, options.force, inputs)
    model = ModelProperties.of(options.model)
    text = inspect_corpus(options.text) if options.text else None
    general = inspect_corpus(options.general) if options.general else None
    outlook = _outlook(text, model) if text else None
    # last, because it may write files
    task = _task(options.task, out, options.force, inputs) if options.task else None
    content = Draft(model, text, task, general, outlook).yaml()
    with storage_errors(out):
        write_atomically(out, content)
    for line in [*_found(text, task, outlook), *_next(out, text, task)]:
        log(line)
    figures: dict[str, Any] = {"model": model.name}
    if text:
        figures |= {"files": len(text.files), "documents": text.documents, "text_field": text.text_field}
    if task:
        figures |= {"examples": task.examples, "classes": len(task.classes), "label_field": task.config.label_field}
    finish("init", out, figures)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"dontstop init: {message}", "see dontstop init --help")


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser("dontstop init", add_help=False, allow_abbrev=False)
    parser.add_argument("text", nargs="*")
    parser.add_argument("--task", nargs="+", default=[])
    parser.add_argument("--general", nargs="+", default=[])
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--out", default="my.yaml")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--debug", action="store_true")
    options = parser.parse_intermixed_args([*arguments])
    if not options.text and not options.task:
        raise ConfigError("dontstop init: no file is named", "name files of text, or --task TRAIN DEV TEST")
    if len(options.task) > 3:
        raise ConfigError(
            f"--task takes at most three paths, for train, dev and test, and {len(options.task)} were given",
            "put the files of text before --task, and quote globs: --task 'train-*.jsonl' dev.jsonl test.jsonl",
        )
    return options


def _input_files(options: argparse.Namespace) -> list[str]:
    """Lists the local files of text, task and general text, which `dontstop init` must not replace."""
    task = [path for paths in split_paths(options.task).values() for path in paths] if options.task else []
    local = [path for path in [*options.text, *options.general, *task] if not is_url(path) or path.startswith("file:")]
    return manifest.expand_paths(local) if local else []


def _check_free(file: Path, force: bool, inputs: Sequence[str]) -> None:
    if file.is_dir():
        raise ConfigError(f"{file} is a folder", "name the file to write: --out my.yaml")
    if file.exists() and any(os.path.samefile(file, each) for each in inputs):
        raise ConfigError(f"{file} is an input, and would be replaced", "name another file with --out")
    if os.path.lexists(file) and not force:
        raise ConfigError(f"{file} exists", "name another file with --out, or replace this one with --force")


def _task(given: Sequence[str], out: Path, force: bool, inputs: Sequence[str]) -> TaskProperties:
    """Inspects a task's files. If dev or test is missing, some examples of train are moved to it.

    The splits are inspected in a temporary folder, so that a failure neither changes nor leaves files.
    """
    paths = split_paths(given)
    look = inspect_task(paths)
    absent = [split for split in ("dev", "test") if split not in paths]
    if not absent:
        return look
    files = {split: out.parent / f"{out.stem}-{split}.jsonl" for split in ("train", *absent)}
    for file in files.values():
        _check_free(file, force, inputs)
    source = _one_line(str(look.config.train))
    lines = _divided(look, list(files))
    parent = os.path.abspath(out.parent)
    with storage_errors(out):
        make_folder(out.parent)
        temporary = TemporaryDirectory(prefix=f".{out.stem}-", dir=parent)
    with temporary as folder:
        asides = {split: Path(folder) / file.name for split, file in files.items()}
        for split, aside in asides.items():
            with storage_errors(files[split]):
                write_atomically(aside, "".join(f"{line}\n" for line in lines[split]))
        try:
            divided = inspect_task(
                {**paths, **{split: [str(aside)] for split, aside in asides.items()}}, look.config.name
            )
        except DataError as error:
            problem = error.what.replace(folder, parent)
            what = f"{' and '.join(absent)} cannot be split off {source}: {problem}"
            raise DataError(what, _NAME_SPLITS) from error
        for split, aside in asides.items():
            with storage_errors(files[split]):
                aside.chmod(file_mode(out.parent))
                aside.replace(files[split])
    for split, target in files.items():
        log(f"{target}: {len(lines[split])} examples, split off from {source}")
    config: dict[str, Any] = {split: str(file) for split, file in files.items()}
    return replace(divided, config=replace(divided.config, **config))


def _divided(look: TaskProperties, splits: Sequence[str]) -> dict[str, list[str]]:
    """Distributes the examples of train over splits. Examples with the same text stay together.

    The split of an example depends only on its text. If a split would be empty, the texts with the smallest keys are
    moved to the missing splits instead.

    Args:
        look: the task.
        splits: `train`, followed by the missing splits.

    Returns:
        The examples as lines of JSON, keyed by split.

    Raises:
        DataError: train has fewer different texts than there are splits.
    """
    examples: list[tuple[int, str]] = []
    for file in manifest.expand_paths(look.config.train):
        for _, record in records.read_objects(file):
            if isinstance(record, str):  # a string instead of a record says why the record is unreadable; skip it
                continue
            text = record.get(look.config.text_field)
            key = heldout.key_of(" ".join(text) if isinstance(text, list) else str(text))
            examples.append((key, json.dumps(record, ensure_ascii=False, default=str)))
    absent = [split for split in splits if split != "train"]
    split_of = {key: _split_at(int(key / 2**64 / _DEV_SHARE), absent) for key, _ in examples}
    if {*splits} - {*split_of.values()}:
        if len(split_of) < len(splits):
            what = f"{_one_line(str(look.config.train))} has {len(split_of)} different texts, too few for"
            raise DataError(f"{what} {', '.join(splits)}", _NAME_SPLITS)
        size = ceil(_DEV_SHARE * len(split_of))
        split_of = {key: _split_at(number // size, absent) for number, key in enumerate(sorted(split_of))}
    lines: dict[str, list[str]] = {split: [] for split in splits}
    for key, line in examples:
        lines[split_of[key]].append(line)
    return lines


def _split_at(number: int, absent: Sequence[str]) -> str:
    """Returns the split of the tenth of the texts with this number. The first tenths go to the missing splits."""
    return absent[number] if number < len(absent) else "train"


@dataclass(frozen=True)
class Draft:
    """The configuration that `dontstop init` writes."""

    model: ModelProperties
    text: CorpusProperties | None
    task: TaskProperties | None
    general: CorpusProperties | None = None
    outlook: TextOutlook | None = None
    """Properties of the text, measured on a sample."""

    @property
    def job(self) -> str:
        """The job to run first with this configuration."""
        return "dapt" if self.text else "tapt"

    def yaml(self) -> str:
        """Formats the configuration as a YAML file with comments."""
        parts = [self._head(), self._model()]
        parts += [self._corpus(self.text)] if self.text else []
        parts += [self._training()]
        parts += [self._task(self.task)] if self.task else []
        parts += ["# Where all results go.\nstorage:\n  root: runs"]
        return "\n\n".join(parts) + "\n"

    def _head(self) -> str:
        name = _name_of(self.text.paths) if self.text else self._need_task().config.name
        return (
            "# Written by dontstop init. To see what would run:\n"
            f"#   dontstop chain plan --job {self.job} --config THIS_FILE\n"
            f"# All fields and their defaults: dontstop {self.job} --help\n"
            f"name: {_scalar(plain_name(name) or 'mine')}"
        )

    def _model(self) -> str:
        lines = ["model:", f"  path: {_scalar(self.model.name)}"]
        if self.model.name == DEMO:
            lines[0:0] = [
                "# A small BERT (4.4 million parameters) to try things out with. For real work name a Hugging Face id,",
                "# such as FacebookAI/roberta-base, or the folder of a model.",
            ]
        if self.model.is_causal:
            lines += ["objective:", "  kind: causal                  # the model predicts the next token"]
        return "\n".join(lines)

    def _corpus(self, text: CorpusProperties) -> str:
        about = "" if text.is_whole else "about "
        kinds = f" ({_kinds(text)})" if len(text.formats) > 1 else ""
        files = f"{len(text.files)} file{'s' if len(text.files) > 1 else ''}{kinds} of {_megabytes(text.size)}"
        left_out = (
            f"; {text.dropped:,} more are dropped, because they are too short or have too few letters"
            if text.dropped
            else ""
        )
        dropped = left_out if text.is_whole else ""
        lines = [
            f"# {files}, {about}{text.documents:,} documents, {_megabytes(text.text_bytes)} of text{dropped}.",
            "corpus:",
            f"  paths: {_paths(text.paths)}",
        ]
        if text.text_field:
            others = f"# other fields of the records: {_listed(text.other_fields)}" if text.other_fields else ""
            lines.append(_with_comment(f"  text_field: {_scalar(text.text_field)}", others))
        if text.text_unit == "paragraph":
            lines.append(_with_comment("  text_unit: paragraph", "# in plain text, blank lines divide documents"))
        if text.bad:
            share = _bad_share(text)
            why = f"# {_unreadable(text)}"
            lines.append(_with_comment(f"  max_bad_fraction: {share:g}", why))
        if kind := self.outlook.wanted_deduplication if self.outlook else "":
            lines.append(_with_comment(f"  deduplicate: {kind}", f"# {self._copies()} in a sample"))
        held = f"# about {text.heldout_documents:,} documents, on which the loss is measured before and after training"
        lines.append(_with_comment(f"  heldout_fraction: {text.heldout_fraction:g}", held))
        config = self.task.config if self.task else None
        if config:
            lines.append("  decontaminate:                # drops documents that contain texts of dev or test")
            for split in ("dev", "test"):
                paths = getattr(config, split)
                lines.append(f"    - name: {split}")
                lines.append(f"      paths: {_paths([paths] if isinstance(paths, str) else paths)}")
                lines.append(f"      text_field: {_scalar(config.text_field)}")
        return "\n".join(lines)

    def _copies(self) -> str:
        profile = self.outlook.profile if self.outlook else None
        return f"{profile.duplicates:.0%} duplicates, {profile.near_duplicates:.0%} near copies" if profile else ""

    def _training(self) -> str:
        on_gpu = has_gpu()
        if self.text:
            length = DraftLength.of(self.text.text_bytes, self.model, on_gpu)
        else:
            length = DraftLength.of_task(self._need_task(), self.model, on_gpu)
        lines = ["training:"]
        per_epoch = f"# passes over the text, about {length.steps_per_epoch:,} steps each"
        lines.append(_with_comment(f"  epochs: {length.epochs}", per_epoch))
        if length.max_steps:
            why = "" if on_gpu else ", so that a first run without a GPU takes minutes; raise or remove this limit"
            lines.append(_with_comment(f"  max_steps: {length.max_steps}", f"# stops before the last epoch{why}"))
        if self.text:
            lines.append(_with_comment(f"  global_batch_size: {length.batch}", "# sequences in one step"))
        longest = f"; the model takes up to {self.model.longest:,}" if self.model.longest else ""
        lines.append(_with_comment(f"  sequence_length: {length.sequence}", f"# tokens{longest}"))
        rate = _rate(self.model) if self.text else "1.0e-4"
        lines.append(f"  learning_rate: {rate}")
        lines += ["evaluation:", f"  sequence_length: {length.sequence}"]
        lines += self._general()
        return "\n".join(lines)

    def _general(self) -> list[str]:
        """Writes the fields for general text. If no general text is given, writes a comment that shows such a field."""
        purpose = "# general text, to measure what the model forgets"
        if self.general is None:
            return [_with_comment("  # general_paths: FILES", purpose)]
        lines = [_with_comment(f"  general_paths: {_paths(self.general.paths)}", purpose)]
        if self.general.text_field:
            lines.append(f"  general_text_field: {_scalar(self.general.text_field)}")
        return lines

    def _need_task(self) -> TaskProperties:
        if self.task is None:
            raise ConfigError("there is neither text nor a task", "name files")
        return self.task

    def _task(self, look: TaskProperties) -> str:
        config = look.config
        lines = [
            f"# Examples: {look.counts}. Classes: {_listed(look.classes)}.",
            "task:",
            f"  name: {_scalar(config.name)}",
        ]
        for split in ("train", "dev", "test"):
            paths = getattr(config, split)
            lines.append(f"  {split}: {_paths([paths] if isinstance(paths, str) else paths)}")
        if config.kind != "single_label":
            lines.append(f"  kind: {config.kind}")
        lines.append(f"  text_field: {_scalar(config.text_field)}")
        if look.other_texts and config.kind != "tokens":
            others = f"# if an example has a second text; other text fields: {_listed(look.other_texts)}"
            lines.append(_with_comment(f"  # pair_field: {_scalar(look.other_texts[0])}", others))
        also = f"# {_listed(look.other_labels)} could be labels too" if look.other_labels else ""
        lines.append(_with_comment(f"  label_field: {_scalar(config.label_field)}", also))
        if tapt_examples(look) != TAPT_EXAMPLES:
            lines.append("tapt:")
            lines.append(_with_comment(f"  batch_examples: {tapt_examples(look)}", "# examples in one step of tapt"))
        return "\n".join([*lines, *self._finetune(look)])

    def _finetune(self, look: TaskProperties) -> list[str]:
        """Writes settings of fine-tuning for small models and few labels; none if the defaults suit."""
        lines = []
        epochs = FinetuneConfig().more_epochs(look.documents)
        if self.model.parameters < SMALL_MODEL:
            lines.append(_with_comment(f"  learning_rate: {_SMALL_RATE}", "# small models need a higher rate"))
        elif epochs and self.model.parameters < MEDIUM_MODEL:
            lines.append(_with_comment(f"  learning_rate: {_MEDIUM_RATE}", "# few steps need a higher rate"))
        if epochs:
            lines.append(_with_comment(f"  epochs: {epochs}", "# few labels need many epochs"))
            lines.append(_with_comment("  patience: null", "# trains all epochs"))
        return ["finetune:", *lines] if lines else []


def _kinds(text: CorpusProperties) -> str:
    """Lists the formats of a corpus, with the number of files of each format."""
    return ", ".join(f"{count:,} {kind}" for kind, count in text.formats.items())


def _unreadable(text: CorpusProperties) -> str:
    """Says how many records of the sample cannot be read, and why."""
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in text.bad.items())
    return f"{sum(text.bad.values()):,} of {text.read:,} records cannot be read: {reasons}"


def _bad_share(text: CorpusProperties) -> float:
    """Chooses `corpus.max_bad_fraction`: twice the sample's share of unreadable records, plus the default value."""
    found = sum(text.bad.values()) / text.read
    return min(ceil(200 * found) / 100 + CorpusConfig().max_bad_fraction, 1.0)


def _rate(model: ModelProperties) -> str:
    if model.parameters < SMALL_MODEL:
        return _SMALL_RATE
    return "5.0e-5" if model.is_causal else "1.0e-4"


def _outlook(text: CorpusProperties, model: ModelProperties) -> TextOutlook:
    """Measures the properties of the text, and how the model's tokenizer splits its words."""
    tokenizer = quick_tokenizer(model.folder) if model.folder else None
    legibility = text_profile.Legibility.of(text_profile.count_sample(text.sample, tokenizer)) if tokenizer else None
    languages = profile_sample.card_languages(model.folder) if model.folder else []
    return TextOutlook("text", profile_sample.profile_of(text.sample, languages), legibility, "none")


def _found(text: CorpusProperties | None, task: TaskProperties | None, outlook: TextOutlook | None) -> list[str]:
    lines = []
    if text:
        about = "" if text.is_whole else "about "
        lines.append(f"text: {about}{text.documents:,} documents, {_megabytes(text.text_bytes)}; {_form(text)}")
        if text.bad:
            lines.append(f"text: {_unreadable(text)}")
    if outlook:
        words = legibility_words(outlook.legibility)
        lines.append(f"text: {outlook.profile.summary()}{f'; {words}' if words else ''}")
        lines += [f"text: {fault}" for fault in outlook.faults]
    if task:
        config = task.config
        fields = f"text in field {config.text_field!r}, {len(task.classes)} classes in {config.label_field!r}"
        lines.append(f"task: {task.counts}; {fields}")
    return lines


def _form(text: CorpusProperties) -> str:
    """Describes the formats of a corpus, and which part of a file is a document."""
    parts = [f"text in field {text.text_field!r}"] if text.text_field else []
    if "text" in text.formats:
        parts.append(f"plain text, one document per {text.text_unit}")
    if documents := [f"{count:,} {kind}" for kind, count in text.formats.items() if kind in formats.DOCUMENTS]:
        parts.append(f"one document per file: {', '.join(documents)}")
    return "; ".join(parts)


def _next(out: Path, text: CorpusProperties | None, task: TaskProperties | None) -> list[str]:
    """Lists the commands that the user can run next."""
    config, job = f"--config {shlex.quote(str(out))}", "dapt" if text else "tapt"
    named = "" if text else " --job tapt"
    commands = [
        (f"dontstop chain plan{named} {config}", "shows what would run"),
        (f"dontstop {job} {config}", "adapts the model"),
    ]
    if task:
        model = " --model.path ADAPTED_MODEL"
        if text:
            commands.append(
                (
                    f"dontstop tapt {config}{model} --training.learning_rate 1e-4",
                    "adapts the model further, to the task's text",
                )
            )
        commands.append((f"dontstop finetune {config}{model}", "fine-tunes the model on the labels and tests it"))
    width = max(len(command) for command, _ in commands)
    return [f"Wrote {out}. Look at it, then run:", *(f"  {command:{width}}  # {about}" for command, about in commands)]


def _name_of(paths: Sequence[str]) -> str:
    """Chooses the name of a corpus: the name of its only file or folder, or of the folder with all its files."""
    plain = [Path(*(part for part in Path(path).parts if not has_magic(part))).absolute() for path in paths]
    if len(plain) == 1:
        return plain[0].name.partition(".")[0]
    return Path(os.path.commonpath([path.parent if path.is_file() else path for path in plain])).name


def _with_comment(line: str, comment: str) -> str:
    return f"{line:31} {comment}" if comment else line


def _scalar(value: str) -> str:
    """Formats a string as a YAML value on one line."""
    return str(yaml.safe_dump(value, width=10**6, allow_unicode=True)).removesuffix("\n").removesuffix("\n...")


def _paths(paths: Sequence[str]) -> str:
    if len(paths) == 1:
        return _scalar(paths[0])
    return "[" + ", ".join(json.dumps(path, ensure_ascii=False) for path in paths) + "]"


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(_one_line(name) for name in names[:most]) + more


def _one_line(name: str) -> str:
    return " ".join(name.split())[:40]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"

"""Writes the generated pages of the site's reference from the code: fields, plug-ins, commands, records, Python API.

`scripts/site_hooks.py` calls `pages()` while the site is built, so these pages are never out of date.
`python scripts/reference.py FOLDER` writes them into a folder.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []

import dontstop  # noqa: E402
from adapt.cli import chain_command, doctor, init, main, tune_command  # noqa: E402
from adapt.config import Config, EvaluationSet, NamedModel, OwnMtebTask, PhaseConfig, SourceConfig  # noqa: E402
from adapt.config.fields import hints_of, type_words  # noqa: E402
from adapt.config.kinds import Kinds  # noqa: E402
from adapt.corpus.cleaning.cleaning_blocks import BLOCKS  # noqa: E402
from adapt.embed.embedder import EMBEDDERS  # noqa: E402
from adapt.handover.table import EXPORT_KINDS  # noqa: E402
from adapt.job import JOBS  # noqa: E402
from adapt.job.measuring_jobs import ACTIONS  # noqa: E402
from adapt.merge.table import MERGERS  # noqa: E402
from adapt.method.table import METHODS  # noqa: E402
from adapt.objective.table import OBJECTIVES  # noqa: E402
from adapt.parse.command_line import documented  # noqa: E402
from adapt.parse.keys import OPTIONS  # noqa: E402
from adapt.runner.record import Record  # noqa: E402
from adapt.select.table import SELECTIONS  # noqa: E402
from adapt.support import errors, paths  # noqa: E402

ALL = tuple(JOBS)
STREAMING = ("dapt", "tapt", "distil", "sequence")
"""Jobs that train a language model."""
USED_BY: Mapping[str, tuple[str, ...]] = {
    "model": ALL,
    "corpus": tuple(name for name in ALL if name not in ("merge", "finetune")),
    "mixture": (*STREAMING, "select"),
    "generate": STREAMING,
    "synthesize": ("dapt",),
    "objective": tuple(name for name in ALL if name != "finetune"),
    "training": (*STREAMING, "vocabulary", "advise"),
    "method": (*STREAMING, "advise"),
    "sequence": ("sequence",),
    "evaluation": (*STREAMING, "select", "ensemble", "evaluate", "similarity", "vocabulary", "advise"),
    "retrieval": ("dapt", "tapt", "distil"),
    "harness": (*STREAMING, "evaluate"),
    "mteb": (*STREAMING, "evaluate"),
    "export": STREAMING,
    "task": ("tapt", "select", "sequence", "finetune", "evaluate", "advise"),
    "tasks": ("tapt", "select", "sequence", "evaluate", "advise"),
    "tapt": ("tapt", "select", "advise"),
    "select": ("select", "dapt", "tapt", "distil", "advise"),
    "finetune": ("finetune", "sequence", "advise"),
    "merge": ("merge", "sequence"),
    "comparison": ("evaluate", "ensemble"),
    "ensemble": ("ensemble",),
    "vocabulary": ("vocabulary", "advise"),
    "similarity": ("similarity",),
    "advice": ("advise",),
    "tune": ("dontstop tune",),
    "resources": ALL,
    "storage": ALL,
    "tracking": (*STREAMING, "dontstop tune"),
    "notify": (*ALL, "dontstop tune"),
}
"""Jobs that read each section, keyed by section."""
FIELD_PAGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "model": ("Model, objective, training", ("model", "objective", "training", "method", "sequence")),
    "text": ("Text", ("corpus", "mixture", "generate", "synthesize", "select")),
    "tasks": ("Tasks and fine-tuning", ("task", "tapt", "finetune")),
    "measuring": (
        "Measuring, merging, vocabulary, searching",
        (
            *("evaluation", "retrieval", "harness", "mteb", "export", "comparison", "similarity", "merge"),
            *("ensemble", "vocabulary", "advice", "tune"),
        ),
    ),
    "running": ("Resources, storage, tracking, messages", ("resources", "storage", "tracking", "notify")),
}
ENTRIES: Mapping[str, tuple[str, type[Any]]] = {
    "sources": ("entries of `corpus.sources`", SourceConfig),
    "decontaminate": ("entries of `corpus.decontaminate`", EvaluationSet),
    "models": ("entries of `comparison.models`", NamedModel),
    "own": ("entries of `mteb.own`", OwnMtebTask),
    "phases": ("entries of `training.phases`", PhaseConfig),
}
"""Title and dataclass of the entries of each field that is a list of entries, keyed by the field's name."""
HAVE_ENTRIES = ("CorpusConfig", "ComparisonConfig", "MtebConfig", "TrainingConfig")
"""Dataclasses of sections with lists of entries. The page explains these entries below the section's fields."""
RESULTS = {
    "dapt": "Adapted",
    "tapt": "Adapted",
    "select": "SelectionJudged",
    "sequence": "SequenceResult",
    "merge": "Merged",
    "ensemble": "Ensembled",
    "distil": "Adapted",
    "finetune": "Scored",
    "evaluate": "ModelsCompared",
    "similarity": "Similar",
    "vocabulary analyze": "Analyzed",
    "vocabulary extend": "Extended",
    "vocabulary trim": "TrimmedVocabulary",
    "vocabulary scratch": "Begun",
    "advise": "Advice",
}
"""Name of the dataclass of each job's result."""
UNIT = re.compile(r" ?\[([^\[\]()]{1,40})\](?=[.;:,]|$| )")


def pages() -> dict[str, str]:
    """Returns the generated pages, keyed by their path below docs/."""
    found = {f"reference/fields-{name}.md": fields_page(*of) for name, of in FIELD_PAGES.items()}
    found["reference/methods.md"] = plug_ins_page(
        "Methods",
        "A method changes how a model is trained, so that it forgets less or keeps domains in parts of its own."
        " `method.kind` names it. The section with the method's name holds its options."
        " [Forgetting](../guide/forgetting.md) explains how to choose one.",
        METHODS,
    )
    found["reference/selections.md"] = plug_ins_page(
        "Selections and embedders",
        "A selection gives every document of a pool a score, and takes the best until the budget is full."
        " `select.kind` names one or a list. The section with the selection's name holds its options."
        " [Selection](../guide/selection.md) explains how to choose one.",
        SELECTIONS,
    ) + plug_ins_section(
        "Embedders",
        "An embedder turns a text into a vector, which `knn`, `tsds` and `semdedup` compare."
        " `select.embedder` names it.",
        EMBEDDERS,
    )
    found["reference/exports.md"] = plug_ins_page(
        "Kinds of exports",
        "A kind of export prepares the exported model for a library or format. `export.kinds` lists kinds. The section"
        " with the kind's name holds its options. [Use the model elsewhere](../guide/hand-over.md) shows what each one"
        " needs.",
        EXPORT_KINDS,
    )
    found["reference/cleaning.md"] = plug_ins_page(
        "Cleaning blocks",
        "A cleaning block changes or drops documents. `corpus.cleaning` lists blocks in the order in which documents"
        " pass them, each as `name` or `name: {option: value}`.",
        BLOCKS,
        inline=True,
    )
    found["reference/kinds.md"] = other_kinds_page()
    found["reference/families.md"] = families_page()
    found["reference/commands.md"] = commands_page()
    found["reference/records.md"] = records_page()
    found["reference/python-api.md"] = python_page()
    return found


FAMILIES: dict[str, str] = json.loads((ROOT / "scripts" / "families.json").read_text("utf-8"))
"""How each model family (`model_type`) takes documents. `python -m scripts.families` writes the file."""


def families_page() -> str:
    """Writes the page of model families, which says whether a family's documents are packed, padded or refused."""
    text = [
        "# Model families",
        "Any encoder for masked and any decoder for causal language modelling that transformers knows can be trained."
        " How fast depends on how its attention takes documents:",
        "- **packed**: documents share a sequence without padding.\n"
        "- **shared rows**: rows have several documents, and a mask for each pair of tokens keeps them apart. Little"
        " padding, one pass.\n"
        "- **padded**: each document is a row of its own. Rows of similar lengths share a pass, so padding is small."
        " A training says how much it is.\n"
        "- **by length**: padding would change the model's outputs, so only documents of exactly the same length"
        " share a pass. This takes many small passes, and does not work with ZeRO stage 3.\n"
        "- **refused**: the model cannot be trained, for the reason that is given.",
        "Other families are tried when a plan is made, and again when the model is loaded.",
        "| family (`model_type`) | documents |\n|---|---|\n"
        + "\n".join(f"| `{family}` | {way} |" for family, way in FAMILIES.items()),
    ]
    return "\n\n".join(text) + "\n"


# Fields


def fields_page(title: str, sections: Iterable[str]) -> str:
    """Writes a page with the fields of some sections."""
    text = [
        f"# Fields: {title}",
        "Write fields into a YAML file by section, or give them on the command line as `--section.field VALUE`."
        " A field marked *execution* says how the work is done: changing it does not run finished stages again.",
    ]
    hints = hints_of(Config)
    if "resources" in sections:
        text.append("## Fields without a section")
        for name, about in documented(Config).items():
            if name not in OPTIONS and not is_dataclass(hints[name]) and name != "tasks":
                text.append(field_text(name, hints[name], about, getattr(Config(), name), is_how=False))
    for section in sections:
        kind = hints[section]
        used = ", ".join(f"`{job}`" for job in USED_BY[section])
        text += [f"## {section} {{ #{section} }}", _first(kind.__doc__), f"Used by: {used}."]
        text += section_fields(section, kind)
        if section == "task":
            about = documented(Config)["tasks"]
            text.append(field_text("tasks", hints["tasks"], about, [], is_how=True))
        for field, (where, entry) in ENTRIES.items():
            if field in kind.__dataclass_fields__ and kind.__name__ in HAVE_ENTRIES:
                text += [f"### {where[0].upper()}{where[1:]} {{ #{section}.{field}.entries }}", _first(entry.__doc__)]
                text += section_fields(f"{section}.{field}.", entry)
    return "\n\n".join(text) + "\n"


def section_fields(section: str, kind: type[Any]) -> Iterator[str]:
    """Yields the description of each field of a dataclass, with a heading."""
    about, hints = documented(kind), hints_of(kind)
    for each in fields(kind):
        if each.name.startswith("_") or each.name not in about:
            continue
        default = each.default if each.default is not MISSING else MISSING
        if each.default_factory is not MISSING:
            default = each.default_factory()
        name = f"{section}.{each.name}" if section and not section.endswith(".") else f"{section}{each.name}"
        shown = each.name if section.endswith(".") or not section else name
        yield field_text(
            name, hints[each.name], about[each.name], default, is_how=bool(each.metadata.get("how")), shown=shown
        )


def field_text(name: str, hint: Any, about: str, default: Any, is_how: bool, shown: str = "") -> str:
    """Describes a field: name, type, default, unit and meaning."""
    kinds = " or ".join(f"`{word}`" for word in map(_spaced, type_words(hint, with_range=True))) or "value"
    words = [kinds, "required" if default is MISSING else f"default `{_yaml(default)}`"]
    unit = UNIT.search(about)
    if unit and unit[1] not in ("start, end", "fewest, most"):
        about = UNIT.sub("", about, count=1)
        words.append(f"in {unit[1]}")
    if is_how:
        words.append("*execution*")
    return f"#### `{shown or name}` {{ #{name} }}\n\n{' · '.join(words)}\n{{ .field }}\n\n{_text(about)}"


def _spaced(word: str) -> str:
    """Puts spaces around the operators of a type's range: `float >=0 and <=1` becomes `float >= 0 and <= 1`."""
    return re.sub(r"([<>]=?)(?=[\d-])", r"\1 ", word)


def _yaml(value: Any) -> str:
    """Formats a default as one line of YAML."""
    if is_dataclass(value) and not isinstance(value, type):
        return json.dumps(asdict(value))
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value)


def _text(about: str) -> str:
    """Converts a docstring to Markdown. Names of pages, papers and fields become links or code."""
    about = re.sub(
        r"docs/((?:guide|science|develop|start)/[\w-]+)\.md",
        lambda match: f"[{Path(match[1]).name.replace('-', ' ')}](../{match[1]}.md)",
        about,
    )
    about = about.replace('page "Cleaning blocks"', "page [Cleaning blocks](cleaning.md)")
    about = re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", about)
    about = re.sub(r"(?<![`\w])([a-z_]+\.[a-z_]+)(?![`\w/(])", _linked, about)
    return about.replace("<", "&lt;")


def _linked(match: re.Match[str]) -> str:
    """Formats a matched name as code if it is the name of a field."""
    section, _, field = match[1].partition(".")
    kind = hints_of(Config).get(section)
    return f"`{match[1]}`" if is_dataclass(kind) and field in kind.__dataclass_fields__ else match[1]


def _first(docstring: str | None) -> str:
    """Returns the first paragraph of a docstring."""
    return _text(" ".join((docstring or "").strip().partition("\n\n")[0].split()))


# Plug-ins


def plug_ins_page(title: str, about: str, table: Kinds[Any], inline: bool = False) -> str:
    """Writes a page about the plug-ins of a table: an overview, then the options of each plug-in."""
    own = "[Your own](../develop/extending.md) is named as `package.module:Class`." if table.base else ""
    return f"# {title}\n\n{about} {own}\n\n{kinds_table(table)}\n\n{kinds_options(table, inline)}"


def plug_ins_section(title: str, about: str, table: Kinds[Any]) -> str:
    """Writes a section about the plug-ins of a table, to append to the page of another table."""
    return f"\n## {title}\n\n{about}\n\n{kinds_table(table)}\n\n{kinds_options(table)}"


def kinds_table(table: Kinds[Any]) -> str:
    """Makes a table with one row per plug-in: its name, and what it does."""
    lines = ["| name | what it does |", "|---|---|"]
    for name in table:
        kind = class_of(table[name])
        options = options_of(table, name)
        is_method = table is METHODS and options is not None
        shown = f"[`{name}`](#{name})" if options is not None else f"`{name}`"
        lines.append(f"| {shown} | {_first_sentence((options.__doc__ or '') if is_method else kind.doc)} |")
    return "\n".join(lines)


def options_of(table: Kinds[Any], name: str) -> Any:
    """Returns the dataclass of a plug-in's own options. None if it has none, or uses the fields of a shared section."""
    if table in (MERGERS, ACTIONS):
        return None
    options = table.load(name) if table is BLOCKS else table.options(name)
    return options if options is not None and hints_of(options) else None


def kinds_options(table: Kinds[Any], inline: bool = False) -> str:
    """Describes the options of each plug-in of a table."""
    text = []
    for name in table:
        options = options_of(table, name)
        if options is None:
            continue
        about = "" if inline else _first(options.__doc__)
        text += [f"### {name} {{ #{name} }}", about, *section_fields(f"{name}", options)]
    return "\n\n".join(filter(None, text)) + "\n"


def other_kinds_page() -> str:
    """Writes the page of objectives, ways of merging and vocabulary actions, whose options are fields of a section."""
    about = "The options of these kinds are fields of their section. Some objectives have further options, in a section"
    text = ["# Objectives, mergers, vocabulary actions", f"{about} with their name."]
    for title, field, table in (
        ("Objectives", "objective", OBJECTIVES),
        ("Ways of merging", "merge", MERGERS),
        ("Vocabulary actions", "vocabulary", ACTIONS),
    ):
        page = next(name for name, (_, sections) in FIELD_PAGES.items() if field in sections)
        where = f"Named by `{table.field}`. Options: [section `{field}`](fields-{page}.md#{field})."
        text += [f"## {title}", where, kinds_table(table), kinds_options(table)]
    return "\n\n".join(text) + "\n"


# Commands


def commands_page() -> str:
    """Writes the page of commands, with their usage and options, and the exit codes."""
    text = [
        "# Commands",
        "`dontstop COMMAND --help` shows the same on the command line. Messages and tables go to stderr."
        " The last line of stdout is JSON: the job, the folder of its result, and its figures.",
        "## Jobs",
        "`dontstop JOB [--config FILE ...] [--section.field VALUE ...]` runs a job. With several files, later ones win;"
        " fields on the command line that follow a file win over it.",
        "| job | what it does |\n|---|---|\n"
        + "\n".join(f"| `{name}` | {_first_sentence(job.kind.description)} |" for name, job in JOBS.items()),
        "`dontstop vocabulary` takes the action as its first word: `analyze`, `extend`, `trim` or `scratch`.",
        "| option | meaning |\n|---|---|\n"
        "| `--config FILE` | A YAML file of fields, or the name of a recipe. May be repeated. |\n"
        "| `--section.field VALUE` | Sets a field. The value is read as YAML. |\n"
        "| `--print_config` | Prints the whole configuration as YAML, which `--config` reads, and ends. |\n"
        "| `--debug` | Shows stack traces of errors. |\n"
        "| `--log_format plain` or `json` | How messages are written. `json` writes a line of JSON per message. |\n"
        "| `--help` | Lists every field with its type, meaning and default. |",
        "Defaults that a job changes:",
        "| job | field | default |\n|---|---|---|\n"
        + "\n".join(
            f"| `{name}` | `{field}` | `{_yaml(value)}` |"
            for name, job in JOBS.items()
            for field, value in job.kind.defaults.items()
        ),
    ]
    helps = {"chain": chain_command.HELP, "tune": tune_command.HELP, "init": init.HELP, "doctor": doctor.HELP}
    for name, about in main.COMMANDS.items():
        text += [f"## {name} {{ #{name} }}", f"{about[0].upper()}{about[1:]}."]
        text += [f"```text\n{helps[name]}\n```"] if name in helps else []
        text += shipped_text() if name == "recipes" else []
    codes = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.AdaptError) and "exit_code" in vars(kind):
            codes[kind.exit_code] = kind
    rows = [
        f"| {code} | `{kind.__name__}` | {_first(kind.__doc__)} |" for code, kind in sorted(codes.items()) if code > 1
    ]
    rows = ["| 0 | | Done. |", *rows, "| 70 | | A bug in dontstop, or an untried version of a package. |"]
    text += ["## Exit codes", "| code | error | meaning |\n|---|---|---|\n" + "\n".join(sorted(rows, key=_code))]
    return "\n\n".join(text) + "\n"


def shipped_text() -> Iterator[str]:
    """Yields tables of the shipped recipes and search spaces, each with a short description."""
    yield (
        "`dontstop recipes` shows these tables. `dontstop recipes NAME` prints a recipe and"
        " `dontstop recipes spaces/NAME` a search space, so that you can change a copy of it. A file in the current"
        " folder is used before a shipped one with the same name."
    )
    yield "| recipe | what it does | command |\n|---|---|---|\n" + "\n".join(
        f"| `{name}` | {_text(about)} | `{command}` |" for name, about, command in main.recipe_rows()
    )
    yield "Search spaces, for `dontstop tune --space NAME`:"
    yield "| space | what it searches |\n|---|---|\n" + "\n".join(
        f"| `{name}` | {_first_sentence(ast.get_docstring(_tree(file)) or '')} |"
        for name, file in paths.spaces().items()
    )


def _code(row: str) -> int:
    return int(row.split("|")[1])


# Records


@dataclass(frozen=True)
class ClassText:
    """Description of a class or function, read from its source."""

    name: str
    module: Path
    """File that defines it."""
    doc: str
    bases: tuple[str, ...]
    fields: dict[str, tuple[str, str]]
    """Annotation and docstring of each field, keyed by name."""
    constants: dict[str, str]


@cache
def classes() -> dict[str, list[ClassText]]:
    """Reads all classes and functions of the package, keyed by name."""
    found: dict[str, list[ClassText]] = {}
    for file in sorted((ROOT / "adapt").rglob("*.py")):
        for node in _tree(file).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.setdefault(node.name, []).append(_class_text(node, file))
    return found


@cache
def _tree(file: Path) -> ast.Module:
    """Parses the source of a file."""
    return ast.parse(file.read_text("utf-8"))


def meaning(name: str, file: Path) -> ClassText | str | None:
    """Looks up a name, such as `Loss` or `measurements.Loss`, in a file.

    Returns a class's text, an alias such as `Literal["a", "b"]`, or None.
    """
    module_name, _, name = name.rpartition(".")
    if module_name:
        there = _imported(module_name, file)
        return meaning(name, there) if there else None
    for node in _tree(file).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class_text(node, file)
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == name and isinstance(value, ast.expr):
            return ast.unparse(value)
    there = _imported(name, file)
    return meaning(name, there) if there else None


def _imported(name: str, file: Path) -> Path | None:
    """Returns the file of a module that a file imports under this name, or the file that it imports the name from."""
    for imported in ast.walk(_tree(file)):
        if isinstance(imported, ast.ImportFrom) and (imported.module or "").startswith("adapt"):
            package = ROOT / str(imported.module).replace(".", "/")
            if name in [alias.name for alias in imported.names]:
                places = package / f"{name}.py", package / "__init__.py", package.with_suffix(".py")
                return next((place for place in places if place.is_file()), None)
    return None


def _class_text(node: ast.ClassDef | ast.FunctionDef, file: Path) -> ClassText:
    named: dict[str, tuple[str, str]] = {}
    constants: dict[str, str] = {}
    body = [*node.body, ast.Pass()] if isinstance(node, ast.ClassDef) else []
    for line, below in pairwise(body):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            is_doc = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            doc = str(below.value.value) if is_doc else ""  # type: ignore[attr-defined]
            named[line.target.id] = ast.unparse(line.annotation), " ".join(doc.split())
        if (
            isinstance(line, ast.Assign)
            and isinstance(line.value, ast.Constant)
            and isinstance(line.targets[0], ast.Name)
        ):
            constants[line.targets[0].id] = str(line.value.value)
    bases = tuple(ast.unparse(base) for base in getattr(node, "bases", ()))
    return ClassText(node.name, file, ast.get_docstring(node) or "", bases, named, constants)


def class_of(place: str) -> ClassText:
    """Reads the class or function `package.module:name` without importing it."""
    module, _, name = place.partition(":")
    file = ROOT / f"{module.replace('.', '/')}.py"
    (node,) = [n for n in _tree(file).body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
    return _class_text(node, file)


def all_fields(kind: ClassText) -> dict[str, tuple[str, str, Path]]:
    """Returns annotation, docstring and file of each field of a class. Fields of base classes come first."""
    inherited: dict[str, tuple[str, str, Path]] = {}
    for base in kind.bases:
        if isinstance(other := meaning(base, kind.module), ClassText):
            inherited |= all_fields(other)
    own = {name: (*of, kind.module) for name, of in kind.fields.items() if not of[0].startswith("ClassVar")}
    return inherited | own


def records_page() -> str:
    """Writes the page of records: their fields, the results of jobs, and the types of stages."""
    text = [
        "# Records and results",
        "A job consists of stages. Each stage has a folder `KIND/NAME-KEY` below `storage.root`, where KEY is the first"
        " 16 digits of the stage's key. The last file in the folder is `stage.json`, the record. A folder without it is"
        " unfinished, and the same command continues it.",
        "## Folders",
        "| folder | stage |\n|---|---|\n" + "\n".join(_stages()),
        "`reports/NAME/` has the report of a chain (`report.html`, `report.md`). `logs/KIND/` has what each stage said,"
        " as lines of JSON.",
        "## stage.json",
        _table(classes()[Record.__name__][0], leave_out=("path",)),
        "## Results",
        "In Python, `run.result` is one of these. On the command line, the line of JSON on stdout has the same"
        " fields in `metrics`. Figures with an interval have `value`, `low` and `high`, the ends of the 95% interval.",
    ]
    shown: dict[str, list[str]] = {}
    for job, name in RESULTS.items():
        shown.setdefault(name, []).append(f"`dontstop {job}`")
    further: list[str] = []
    for name, jobs in shown.items():
        kind = classes()[name][0]
        text += [f"### {name} {{ #{name} }}", f"{_first(kind.doc)} Result of {' and '.join(jobs)}."]
        text.append(_table(kind, further))
    prepared = classes()["Prepared"][0]
    text += [
        "### Prepared { #Prepared }",
        f"{_first(prepared.doc)} Result of stage `prepare`, in `metrics` of `prepare/NAME-KEY/stage.json`.",
        _table(prepared, further),
    ]
    text += ["## Parts of results"]
    for name in further:
        if name not in shown:
            kind = classes()[name][0]
            text += [f"### {name} {{ #{name} }}", _first(kind.doc), _table(kind, further)]
    return "\n\n".join(text) + "\n"


def _stages() -> Iterator[str]:
    """Yields a row for each type of stage."""
    rows: dict[str, str] = {}
    for named in classes().values():
        for kind in named:
            if any(base.startswith("Stage[") for base in kind.bases) and "kind" in kind.constants:
                rows.setdefault(kind.constants["kind"], _first_sentence(kind.doc))
    return (f"| `{kind}/` | {about} |" for kind, about in sorted(rows.items()))


def _table(kind: ClassText, found: list[str] | None = None, leave_out: tuple[str, ...] = ()) -> str:
    """Makes a table of the fields of a class. Adds the dataclasses among their types to `found`."""
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for name, (annotation, about, file) in all_fields(kind).items():
        if name in leave_out or name.startswith("_"):
            continue
        annotation = re.sub(r"\b(?:More|Less|Even)\[(.*)\]$", r"\1", annotation.strip("'\""))
        linked = ""
        for dotted in dict.fromkeys(re.findall(r"(?:[a-z]\w*\.)*[A-Z]\w+", annotation)):
            part, what = dotted.rpartition(".")[2], meaning(dotted, file)
            annotation = annotation.replace(dotted, part)
            if isinstance(what, str) and "Literal[" in what:
                annotation = re.sub(rf"\b{part}\b", _choices(what), annotation)
            elif isinstance(what, ClassText) and found is not None and all_fields(what):
                found.extend([part] if part not in found else [])
                linked += f" ([{part}](#{part}))"
        shown = f"`{annotation.replace(' | ', ' or ')}`{linked}"
        lines.append(f"| `{name}` | {shown} | {_text(about).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) if len(lines) > 2 else "It has no fields."


def _choices(alias: str) -> str:
    """Formats the values of a `Literal` with `or` between them."""
    return re.sub(r"Literal\[(.*?)\]", lambda match: match[1].replace(", ", " or "), alias)


# Python


def python_page() -> str:
    """Writes the page of public functions and classes, which the site generates from their docstrings."""
    text = [
        "# Python API",
        "`import dontstop` offers every job as a function. [Python](../guide/python.md) explains how to use them.",
        "## Jobs",
    ]
    options = "    options:\n      heading_level: 3\n      show_root_full_path: false"
    for name in [*JOBS, "plan", "tune", "chain"]:
        text.append(f"::: dontstop.{name}\n{options}")
    text.append("## What they return and raise")
    for name in ("Run", "Plan", "ChainStudy", "AdaptError"):
        text.append(f"::: dontstop.{name}\n{options}\n      inherited_members: false")
    text.append(
        "`dontstop.Config` is the configuration with all its sections: see [the fields](fields-model.md)."
        " `dontstop.__version__` is the version as text."
    )
    missing = {*dontstop.__all__} - {*JOBS, "plan", "tune", "chain", "Run", "Plan", "ChainStudy", "AdaptError"}
    assert missing == {"Config", "__version__"}, missing
    return "\n\n".join(text) + "\n"


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    match = re.match(r".*?(?<!\bal)(?<!\be\.g)(?<!\bi\.e)\.(?= [A-Z`]|$)", paragraph)
    return _text(match[0] if match else paragraph).replace("|", "\\|")


if __name__ == "__main__":
    for place, content in pages().items():
        file = Path(sys.argv[1], place)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, "utf-8")

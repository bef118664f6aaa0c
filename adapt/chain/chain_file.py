"""Parses chain files, and the command line of dontstop chain."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from adapt.config import Config, flat
from adapt.config.kinds import read_options
from adapt.job import JOBS, job_of
from adapt.job.job_run import Job
from adapt.parse.command_line import is_text, note_repeated
from adapt.parse.keys import nested, unknown
from adapt.parse.yaml_file import load_yaml, read_yaml, refuse_variables, takes_list, takes_text
from adapt.statistics.continual_metrics import SequenceFigures
from adapt.statistics.seeds import MARGIN, Margin, SeedRounds
from adapt.support.errors import ConfigError

T = TypeVar("T")
_KEYS = {"name", "baseline", "let", "common", "sets", "stages", "report", "study", "sequential"}
_NAME = r"(?!\.+$)[\w.+-][\w.+ -]*"
"""Regular expression for a chain's name. The folder of the chain's report has this name."""
MEMBER = r"[^][{},\s]+(?: [^][{},\s]+)*"
"""Regular expression for the name of an entry of `stages`, and of a member of a set. Names are separated by commas, as
in `tapt[a, b]` and `--only task=a,b`."""
_MEMBER_FIX = "use words without commas, brackets and braces, separated by single spaces"


@dataclass(frozen=True)
class ChainEntry:
    """An entry of `stages` in a chain file."""

    name: str
    job: Job
    sweep: tuple[str, ...]
    """Names of the sets that the entry is swept over. The entry becomes one stage per combination of their members."""
    start: Any
    """Name of the stage whose model the entry starts from, or of a stage that selects the entry's text, or a list of
    both names. A name may contain placeholders. None: the entry starts from model.path, with its configured text."""
    fields: Mapping[str, Any]
    """Configuration fields of the entry. Their values may contain placeholders."""
    tuned: Any = None
    """Name of the search whose best values replace the entry's own values. The name may contain placeholders."""
    keep: tuple[str, ...] = ()
    """Fields for which the entry keeps its own values. The other fields of the search get the search's best values."""

    @property
    def is_search(self) -> bool:
        """Whether the entry is a search. An entry is a search if the entry itself sets fields of `tune`.

        Settings of `tune` in `common` do not make an entry a search.
        """
        return any(name.partition(".")[0] == "tune" for name in self.fields)


@dataclass(frozen=True)
class ChainFile:
    """The content of a chain file."""

    file: str
    name: str
    baseline: str
    let: Mapping[str, Any]
    common: Mapping[str, Any]
    sets: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """Attribute values of set members, keyed by the name of the set, then the member, then the attribute."""
    entries: Mapping[str, ChainEntry]
    margin: Margin = MARGIN
    """Differences up to these thresholds count as negligible in the report."""
    rounds: SeedRounds | None = None
    """The rounds of seeds of a sequential study, which ends comparisons early. None for other chains."""


def read_chain(path: str, let: Mapping[str, Any] | None = None, common: Mapping[str, Any] | None = None) -> ChainFile:
    """Reads a chain file.

    Args:
        path: path of the file.
        let: values of variables, which replace the values in the section `let` of the file.
        common: fields of all stages, which replace the fields in the section `common` of the file.

    Raises:
        ConfigError: the file cannot be read or does not have the form of a chain file. The message names the key.
    """
    content = read_yaml(path)
    for key in content:
        if key not in _KEYS and "stages" not in content and key.split(".")[0] in Config.__dataclass_fields__:
            raise ConfigError(
                f"{path} is the configuration of a single job, not a chain file",
                f"plan it with `dontstop chain plan --job JOB --config {path}`, or move its fields to an entry below"
                " `stages:`",
            )
        if key not in _KEYS:
            raise unknown(f"{key} in {path}", key, _KEYS)
    for key in ("name", "baseline"):
        if content.get(key, "") is None:
            raise ConfigError(f"{key} in {path} has no value", f"write a value after `{key}:`, or remove the line")
    own = dict(_mapping(content, "let", path))
    for name in let or {}:
        if name not in own:
            raise unknown(f"--{name}", name, {*own, "only"})
    sets = {name: _members(name, members, path) for name, members in _mapping(content, "sets", path).items()}
    entries = {name: _entry(name, fields, sets, path) for name, fields in _mapping(content, "stages", path).items()}
    if not entries:
        raise ConfigError(f"{path} has no stages", "add at least one entry below `stages:`")
    for values in (_mapping(content, "common", path), *(entry.fields for entry in entries.values())):
        refuse_variables(nested(values), f"in {path}")
    name = str(content.get("name") or Path(path).stem)
    if not re.fullmatch(_NAME, name):
        raise ConfigError(
            f"{path}: the name {name!r} cannot be the name of a folder",
            "use only letters, digits, '.', '+', '-' and '_'",
        )
    return ChainFile(
        file=path,
        name=name,
        baseline=_baseline(content, sets, entries, path),
        let={**own, **(let or {})},
        common={**_mapping(content, "common", path), **(common or {})},
        sets=sets,
        entries=entries,
        margin=_margin(content, path),
        rounds=_rounds(content, path),
    )


def _margin(content: Mapping[str, Any], path: str) -> Margin:
    """Returns the margin (largest negligible differences) in the section `report`."""
    report = _mapping(content, "report", path)
    for key in report.keys() - {"margin"}:
        raise unknown(f"report.{key} in {path}", key, {"margin"})
    return _read_section("report.margin", Margin, _mapping(report, "margin", f"{path}, report"), path)


def _rounds(content: Mapping[str, Any], path: str) -> SeedRounds | None:
    """Returns the rounds of seeds of a sequential study, from the keys `study` and `sequential`, or None."""
    options = _mapping(content, "sequential", path)
    if "study" not in content:
        if options:
            raise ConfigError(f"{path} has `sequential`, but no `study`", "add `study: sequential`")
        return None
    if content["study"] != "sequential":
        raise ConfigError(
            f"study in {path} is {content['study']!r}", "write `study: sequential`, or remove the key `study`"
        )
    rounds = _read_section("sequential", SeedRounds, options, path)
    known = {each.name for each in fields(SequenceFigures)}
    for figure in rounds.figures:
        if figure not in known:
            raise unknown(f"{figure} in {path}, sequential.figures", figure, known)
    if not rounds.figures or len({*rounds.figures}) < len(rounds.figures):
        what = f"sequential.figures in {path} is empty or names a metric twice"
        raise ConfigError(what, "write a list such as [average, general_change]")
    if rounds.max_seeds < rounds.first_seeds:
        what = f"sequential.max_seeds in {path} is {rounds.max_seeds}, less than first_seeds ({rounds.first_seeds})"
        raise ConfigError(what, "raise max_seeds, or lower first_seeds")
    return rounds


def _read_section(section: str, kind: type[T], given: Mapping[str, Any], path: str) -> T:
    try:
        return read_options(section, kind, given)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.what}", error.fix) from error


def _baseline(content: Mapping[str, Any], sets: Mapping[str, Any], entries: Mapping[str, ChainEntry], path: str) -> str:
    """Returns the name of the baseline: a member of the set `recipe` or, if there is no such set, an entry."""
    baseline = str(content.get("baseline") or "base")
    known = set(sets.get("recipe", entries))
    if content.get("baseline") and baseline not in known:
        raise unknown(f"{baseline} in {path}, baseline", baseline, known)
    return baseline


def _mapping(content: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    mapping = content.get(key) or {}
    if not isinstance(mapping, Mapping):
        raise ConfigError(
            f"{key} in {path} does not contain `name: value` lines",
            f"write such lines below `{key}:`, or remove `{key}`",
        )
    return {str(name): value for name, value in mapping.items()}


def _members(name: str, members: Any, path: str) -> dict[str, Mapping[str, Any]]:
    if isinstance(members, list):
        if any(isinstance(member, bool) or member is None for member in members):
            what = (
                f"sets: {name} in {path}: YAML reads a member as a boolean (yes, no, on, off, true, false) or as empty"
            )
            raise ConfigError(what, 'put the name of this member in quotes, as in ["no", se]')
        members = {str(member): {} for member in members}
    given = members if isinstance(members, Mapping) else {}
    attributes_of = {str(member): attributes or {} for member, attributes in given.items()}
    if not attributes_of or not all(isinstance(attributes, Mapping) for attributes in attributes_of.values()):
        raise ConfigError(
            f"sets: {name} in {path} is not a list of members", "write [a, b], or {a: {attribute: value}}"
        )
    for member in attributes_of:
        if not re.fullmatch(MEMBER, member):
            raise ConfigError(f"sets: {name} in {path}: {member!r} cannot be the name of a member", _MEMBER_FIX)
    return {
        member: {str(key): value for key, value in attributes.items()} for member, attributes in attributes_of.items()
    }


def _entry(name: str, fields: Any, sets: Mapping[str, Any], path: str) -> ChainEntry:
    place = f"stages: {name} in {path}"
    if not re.fullmatch(MEMBER, name):
        raise ConfigError(f"{place}: {name!r} cannot be the name of a stage", _MEMBER_FIX)
    if not isinstance(fields, Mapping) or fields.get("job") is None:
        raise ConfigError(f"{place} has no job", f"add `job: NAME` with one of these names: {', '.join(JOBS)}")
    try:
        job = job_of(str(fields["job"]))
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.what}", error.fix) from error
    sweep = fields.get("for", [])
    sweep = [sweep] if isinstance(sweep, str) else sweep
    if not isinstance(sweep, list) or len({str(set_name) for set_name in sweep}) < len(sweep):
        what = f"{place}: `for` is not a list of sets, or names a set twice"
        raise ConfigError(what, "name each set once, such as `for: [recipe, task]`")
    for set_name in sweep:
        if str(set_name) not in sets:
            raise unknown(f"{set_name} in {place}, for", str(set_name), set(sets))
    rest = {str(key): value for key, value in fields.items() if key not in ("job", "for", "from", "tuned", "keep")}
    keep = _kept(fields, place)
    return ChainEntry(name, job, tuple(map(str, sweep)), fields.get("from"), rest, fields.get("tuned"), keep)


def _kept(fields: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """Returns the fields that an entry keeps from the best values of a search."""
    keep = fields.get("keep", [])
    keep = [keep] if isinstance(keep, str) else keep
    if not isinstance(keep, list):
        raise ConfigError(f"{place}: `keep` is not a list of fields", "write a list such as `keep: [training.epochs]`")
    if keep and not fields.get("tuned"):
        raise ConfigError(
            f"{place} has `keep`, but does not use the best values of a search", "add `tuned: SEARCH`, or remove `keep`"
        )
    return tuple(map(str, keep))


VERBS = ("run", "plan", "report")
USAGE = (
    "dontstop chain run|plan|status|report|submit|logs|stop FILE [--only set=member,member] [--NAME VALUE]"
    " [--section.field VALUE]"
)


@dataclass(frozen=True)
class Command:
    """A parsed command line of dontstop chain."""

    verb: str
    file: str
    let: dict[str, str] = field(default_factory=dict)
    """Values of variables, keyed by name, which replace the values in the file's section `let`."""
    common: dict[str, Any] = field(default_factory=dict)
    """Configuration fields that apply to all stages."""
    only: dict[str, list[str]] = field(default_factory=dict)
    """Members to run, keyed by the name of their set."""


def read_job(arguments: Sequence[str]) -> tuple[Job, list[str]]:
    """Returns the job that `--job NAME` names (default: `dapt`), and the remaining arguments."""
    job, rest = "dapt", list(arguments)
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--job":
            job = value if equals else next(iter(arguments[index + 1 :]), "")
            rest = [*arguments[:index], *arguments[index + (1 if equals else 2) :]]
    return job_of(job), rest


def read_command(arguments: Sequence[str]) -> Command:
    """Parses arguments such as `run FILE --only task=acl_arc --data /data --resources.workers 2`."""
    verb, file = (*arguments[:2], "", "")[:2]
    if verb not in VERBS or not file or file.startswith("--"):
        raise ConfigError(f"cannot read the command {' '.join(arguments[:2]) or '(none)'}", f"use: {USAGE}")
    command = Command(verb, file)
    fields, given = flat(Config()), dict[str, str]()
    for name, value in _options(arguments[2:]):
        if name != "only":
            note_repeated(name, value, given, takes_list(name, frozenset()))
        if name == "only":
            of_set, _, members = value.partition("=")
            if "=" in members:
                each = re.sub(r",([^,=]+=)", r" --only \1", value)
                raise ConfigError(f"--only {value} names several sets", f"repeat the option: --only {each}")
            command.only.setdefault(of_set, []).extend(members.split(","))
        elif "." in name or name in fields:
            command.common[name] = _read(name, value)
        else:
            command.let[name] = value
    refuse_variables(nested(command.common), "on the command line")
    return command


def _read(name: str, value: str) -> Any:
    try:
        content = load_yaml(value)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--{name}: the value {value} is not valid YAML", "put text with special characters in quotes"
        ) from error
    return value if takes_text(name, frozenset()) and is_text(value, content) else content


def _options(arguments: Sequence[str]) -> list[tuple[str, str]]:
    named, rest = [], [argument for argument in arguments if argument != "--debug"]
    while rest:
        option = rest.pop(0)
        name, equals, value = option.removeprefix("--").partition("=")
        if not option.startswith("--") or not (equals or rest):
            raise ConfigError(f"cannot read {option}", f"use: {USAGE}")
        named.append((name, value if equals else rest.pop(0)))
    return named

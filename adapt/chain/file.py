"""A chain file as it stands, checked for its form.

name: study
baseline: base                       # the member of `recipe` that the others are compared to
let: {data: data}                    # names for the placeholders below; --data /elsewhere sets one
common: {model.path: FacebookAI/roberta-base}        # fields of every stage, by section or by dotted name
sets:                                # what stages are swept over: members, perhaps with attributes
domain: {cs: {corpus: acl}, biomed: {corpus: pubmed}}
task: {acl_arc: {domain: cs}, chemprot: {domain: biomed, metric: micro_f1}}
recipe: {base: {start: null}, DAPT: {start: "dapt[{task.domain}]"}}
stages:
dapt: {job: dapt, for: domain, corpus.paths: "{data}/{domain.corpus}.jsonl.gz"}
search: {job: tapt, for: task, tune: {space: tune_spaces/tapt.py, samples: 12}, task: {name: "{task}", ...}}
finetune: {job: finetune, for: [recipe, task], from: "{recipe.start}", task: {name: "{task}", ...}}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.errors import ConfigError
from adapt.job.job import Job
from adapt.job.registry import JOBS, job_of
from adapt.parse.blanks import refuse_blanks
from adapt.parse.keys import nested, place_in, unknown
from adapt.parse.yaml_file import compose_yaml, node_at, read_yaml, yaml_text

_KEYS = {"name", "baseline", "let", "common", "sets", "stages"}
_NAME = r"(?!\.+$)[\w.+-][\w.+ -]*"
"""The form of a chain's name, after which the folder of its report is named."""
_MEMBER = r"[^][{},\s]+( [^][{},\s]+)*"
"""The form of a set's member. Members are separated by commas, as in `tapt[a, b]` and `--only task=a,b`."""


@dataclass(frozen=True)
class ChainEntry:
    """One entry of `stages`."""

    name: str
    job: Job
    sweep: tuple[str, ...]
    """The sets that it is swept over: there is a stage for every combination of their members."""
    start: Any
    """A text, or a placeholder, that names the stage whose model it starts from, or a stage that selects its text; or
    a list of both. None for model.path, and its own text."""
    fields: Mapping[str, Any]
    """Fields of the configuration; their values may hold placeholders."""
    tuned: Any = None
    """A text, or a placeholder, that names the search whose best values stand in place of its own."""

    @property
    def is_search(self) -> bool:
        """Whether it searches good values, as it says itself how: settings of `common` alone make no search."""
        return any(name.partition(".")[0] == "tune" for name in self.fields)


@dataclass(frozen=True)
class ChainFile:
    """A chain file."""

    file: str
    name: str
    baseline: str
    let: Mapping[str, Any]
    common: Mapping[str, Any]
    sets: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """For each set its members, and for each member its attributes."""
    entries: Mapping[str, ChainEntry]


def read_chain(path: str, let: Mapping[str, str] | None = None, common: Mapping[str, Any] | None = None) -> ChainFile:
    """Reads a chain file.

    Args:
        path: of the file.
        let: values in place of those of `let`.
        common: fields in place of those of `common`.

    Raises:
        ConfigError: the file cannot be read, or does not have the form above; names the key.
    """
    content = read_yaml(path)
    for key in content:
        if key not in _KEYS and "stages" not in content and key.split(".")[0] in Config.__dataclass_fields__:
            raise ConfigError(
                f"{path} is the configuration of a single job, not a chain file",
                f"plan it with `dontstop chain plan --job … --config {path}`, or put its fields below `stages:`",
            )
        if key not in _KEYS:
            raise unknown(f"{key} in {path}", key, _KEYS)
    for key in ("name", "baseline"):
        if content.get(key, "") is None:
            raise ConfigError(f"{key} in {path} has no value", "write one after it, or remove it")
    own = dict(_mapping(content, "let", path))
    for name in let or {}:
        if name not in own:
            raise unknown(f"--{name}", name, {*own, "only"})
    sets = {name: _members(name, members, path) for name, members in _mapping(content, "sets", path).items()}
    entries = {name: _entry(name, fields, sets, path) for name, fields in _mapping(content, "stages", path).items()}
    if not entries:
        raise ConfigError(f"{path} has no stages", "add some below `stages:`")
    _refuse_blanks_in(path, content, entries)
    name = str(content.get("name") or Path(path).stem)
    if not re.fullmatch(_NAME, name):
        raise ConfigError(f"{path}: the name {name!r} cannot name a folder", "use letters, digits, '.', '+', '-', '_'")
    return ChainFile(
        file=path,
        name=name,
        baseline=_baseline(content, sets, entries, path),
        let={**own, **(let or {})},
        common={**_mapping(content, "common", path), **(common or {})},
        sets=sets,
        entries=entries,
    )


def _refuse_blanks_in(path: str, content: Mapping[str, Any], entries: Mapping[str, ChainEntry]) -> None:
    """Refuses fields without a value where they are written. What placeholders stand for is looked at later."""
    root = compose_yaml(yaml_text(path))
    written: dict[tuple[str, ...], Mapping[str, Any]] = {("common",): _mapping(content, "common", path)}
    for above, given in (written | {("stages", name): entry.fields for name, entry in entries.items()}).items():
        refuse_blanks(nested(given), "", place_in(path, *above), node_at(root, above)[0])


def _baseline(content: Mapping[str, Any], sets: Mapping[str, Any], entries: Mapping[str, ChainEntry], path: str) -> str:
    """The baseline: a member of the set `recipe`, or, if there is no such set, the name of an entry."""
    baseline = str(content.get("baseline") or "base")
    known = set(sets.get("recipe", entries))
    if content.get("baseline") and baseline not in known:
        raise unknown(f"{baseline} in {path}, baseline", baseline, known)
    return baseline


def _mapping(content: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    mapping = content.get(key) or {}
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{key} in {path} holds no `name: value` lines", "give it some, or remove it")
    return {str(name): value for name, value in mapping.items()}


def _members(name: str, members: Any, path: str) -> dict[str, Mapping[str, Any]]:
    if isinstance(members, list):
        if any(isinstance(member, bool) or member is None for member in members):
            what = f"sets: {name} in {path}: a member is empty, or one of yes, no, on, off, true, false"
            raise ConfigError(what, 'put such a name in quotes, as in ["no", se]')
        members = {str(member): {} for member in members}
    given = members if isinstance(members, Mapping) else {}
    attributes_of = {str(member): attributes or {} for member, attributes in given.items()}
    if not attributes_of or not all(isinstance(attributes, Mapping) for attributes in attributes_of.values()):
        raise ConfigError(f"sets: {name} in {path} is no list of members", "write [a, b], or {a: {attribute: value}}")
    for member in attributes_of:
        if not re.fullmatch(_MEMBER, member):
            what = f"sets: {name} in {path}: a member cannot be called {member!r}"
            raise ConfigError(what, "leave out commas, brackets and braces")
    return {
        member: {str(key): value for key, value in attributes.items()} for member, attributes in attributes_of.items()
    }


def _entry(name: str, fields: Any, sets: Mapping[str, Any], path: str) -> ChainEntry:
    place = f"stages: {name} in {path}"
    if not isinstance(fields, Mapping) or fields.get("job") is None:
        raise ConfigError(f"{place} has no job", f"give it `job: ` and one of {', '.join(JOBS)}")
    try:
        job = job_of(str(fields["job"]))
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.what}", error.fix) from error
    sweep = fields.get("for", [])
    sweep = [sweep] if isinstance(sweep, str) else sweep
    if not isinstance(sweep, list) or len({str(set_name) for set_name in sweep}) < len(sweep):
        what = f"{place}: `for` is no list of sets, or names one of them twice"
        raise ConfigError(what, "name each set once, such as `for: [recipe, task]`")
    for set_name in sweep:
        if str(set_name) not in sets:
            raise unknown(f"{set_name} in {place}, for", str(set_name), set(sets))
    rest = {str(key): value for key, value in fields.items() if key not in ("job", "for", "from", "tuned")}
    return ChainEntry(name, job, tuple(map(str, sweep)), fields.get("from"), rest, fields.get("tuned"))

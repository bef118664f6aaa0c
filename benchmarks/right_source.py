"""Measures how many of the selected documents come from the right source, in a pool of three sources.

The pool has 600 abstracts of computational linguistics, 600 sentences of PubMed and 600 film reviews, which differ in
length. For each task, whose source is known, 200 documents are selected. A figure such as `dsir_imdb` is named after
the kind of selection and the task. It is the share of the selected documents that come from the task's source. The task
`scierc_short` has the first six words of each SciERC text. In the task `scierc_letters`, words replace the markers
around entities.
`knn` and `tsds` compare vectors of the embedder in their name: MiniLM's `static` or `transformer`, or `vampire`, which
is measured only if --embedders lists it. `--quick` measures dsir and classifier only.
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Options, Result, Targets, finished, job, parser_of, report, workplace

SOURCES = {"cs": "cs_acl_abstracts", "biomed": "biomed_pubmed", "reviews": "reviews_imdb"}
TASKS = {
    "scierc": "cs",
    "acl_arc": "cs",
    "chemprot": "biomed",
    "pubmedqa": "biomed",
    "imdb": "reviews",
    "scierc_short": "cs",
    "scierc_letters": "cs",
}
KINDS = ("dsir", "classifier")
EMBEDDED = tuple((kind, embedder) for embedder in ("static", "transformer", "vampire") for kind in ("knn", "tsds"))
NAMES = [*KINDS, *(f"{kind}_{embedder}" for kind, embedder in EMBEDDED)]
TARGETS: Targets = {f"{name}_{task}": (">=", 0.8) for name in NAMES for task in TASKS}
EACH, TAKEN, MOST_TARGET = 600, 200, 1000
SIGNS = {"[[": "e1start", "]]": "e1end", "<<": "e2start", ">>": "e2end"}
MODEL = "minilm-l6-general"


def measure(options: Options, tasks: Sequence[str], embedders: Sequence[str]) -> Result:
    """Selects documents for each task with each kind of selection, and returns the shares."""
    assert options.data
    pool = [(source, text) for source, name in SOURCES.items() for text in evenly(options.data, name)]
    figures = {}
    for task in tasks:
        target = target_of(options.data, task)
        for kind in KINDS:
            figures[f"{kind}_{task}"] = share([pool[id][0] for id in by_words(kind, pool, target)], task)
    if embedders:
        assert options.models
        with workplace() as folder:
            for embedder in embedders:
                for task in tasks:
                    jobs = folder / embedder / task
                    jobs.mkdir(parents=True)
                    for kind in ("knn", "tsds"):
                        taken = by_job(kind, embedder, pool, target_of(options.data, task), options.models, jobs)
                        figures[f"{kind}_{embedder}_{task}"] = share(taken, task)
    details = [("pool", f"{EACH} documents of each of {', '.join(SOURCES.values())}; {TAKEN} are taken")]
    return Result(figures, details)


def share(sources: Sequence[str], task: str) -> float:
    """Returns the share of the selected documents that come from the task's source."""
    return sum(source == TASKS[task] for source in sources) / max(len(sources), 1)


def evenly(data: Path, name: str) -> list[str]:
    """Returns evenly spaced documents of a corpus."""
    texts = texts_in(data / "corpora" / f"{name}.jsonl.gz")
    return texts[:: len(texts) // EACH][:EACH]


def target_of(data: Path, task: str) -> list[str]:
    """Returns the distinct train texts of a task, or a variant of these texts.

    At most MOST_TARGET evenly spaced texts are returned.
    """
    name, _, change = task.partition("_") if task.startswith("scierc_") else (task, "", "")
    texts = list(dict.fromkeys(texts_in(data / "tasks" / name / "train.jsonl.gz")))
    texts = texts[:: max(1, len(texts) // MOST_TARGET)]
    if change == "short":
        return [" ".join([word for word in text.split() if word not in SIGNS][:6]) for text in texts]
    if change == "letters":
        return [" ".join(SIGNS.get(word, word) for word in text.split()) for text in texts]
    return texts


def texts_in(file: Path) -> list[str]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [text for line in lines if (text := json.loads(line)["text"]).strip()]


def by_words(kind: str, pool: Sequence[tuple[str, str]], target: Sequence[str]) -> list[int]:
    """Runs a selection by n-grams in this process, and returns the indices of the selected documents in the pool."""
    from adapt.config import Config, CorpusConfig
    from adapt.corpus.files.manifest import build_manifest
    from adapt.runner.digest import Digests
    from adapt.select.choose import highest
    from adapt.select.pool import Pool
    from adapt.select.selection import Given
    from adapt.select.table import selection_of

    with workplace() as folder:
        corpus = CorpusConfig(paths=str(write_lines(folder / "pool.jsonl", [text for _, text in pool])))
        documents = Pool(build_manifest(corpus, Digests()), corpus)
        selection = selection_of(kind, {}, 0)
        selection.learn(Given(documents, target, Config()))
        return [id for id, _, _ in highest(selection, documents, target, TAKEN)]


def write_lines(file: Path, texts: Sequence[str]) -> Path:
    """Writes texts to a file."""
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return file


def by_job(
    kind: str, embedder: str, pool: Sequence[tuple[str, str]], target: Sequence[str], models: Path, folder: Path
) -> list[str]:
    """Returns the source of each document that a job selects."""
    sources = {text: source for source, text in pool}
    pool_file = write_lines(folder / "pool.jsonl", [text for _, text in pool])
    target_file = write_lines(folder / "target.jsonl", target)
    options = {"path": str(models / MODEL)} if embedder != "vampire" else {}
    done = finished(
        job(
            [
                *("--model.path", str(models / MODEL), "--storage.root", str(folder / "runs")),
                *("--select.pool_paths", str(pool_file), "--select.target_paths", str(target_file)),
                *("--select.kind", kind, "--select.documents", str(TAKEN), "--select.embedder", embedder),
                *(f"--{embedder}.{name}={value}" for name, value in options.items()),
                *("--select.measure_loss", "false"),
            ],
            "select",
        )
    )
    lines = (Path(done["path"]) / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    return [sources[json.loads(line)["text"]] for line in lines]


def main() -> None:
    parser = parser_of("right_source", __doc__, needs_folders=True)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--embedders", nargs="*", choices=["static", "transformer", "vampire"])
    arguments = parser.parse_args()
    embedders = [] if arguments.quick else ["static", "transformer"]
    if arguments.embedders is not None:
        embedders = arguments.embedders
    found = measure(Options(arguments.quick, arguments.data, arguments.models), arguments.tasks, embedders)
    report("right_source", TARGETS, found, arguments.json)


if __name__ == "__main__":
    main()

"""Scores a model's sentence vectors on tasks of MTEB, in a Ray task.

sentence-transformers loads the model in the same way as an exported folder, and MTEB computes the scores. Scores per
item come from the predictions that MTEB saves: labels and similarities, and the measures of each query. If the process
is killed and runs again, finished tasks are not repeated.
"""

import hashlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval, AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from sentence_transformers import SentenceTransformer

from adapt.config import OwnMtebTask
from adapt.evaluate import evaluation_task, retrieval
from adapt.evaluate.benchmark.item_scores import ItemMeasure, TaskItems, file_name, hushed, told_of_task, write_items
from adapt.evaluate.benchmark.mteb_tasks import MtebRun, as_retrieval, naming_fields_of, own_rows
from adapt.model import locate, sentence_vectors
from adapt.runner.files import link_or_copy

SPLIT = "test"
TYPES: dict[str, tuple[Any, Any, str]] = {
    "classification": ("Classification", "t2c", "accuracy"),
    "sts": ("STS", "t2t", "cosine_spearman"),
    "retrieval": ("Retrieval", "t2t", "ndcg_at_10"),
}
"""MTEB's type, category and main score for each kind of user-defined task."""


def score_mteb_tasks(run: MtebRun, folder: Path) -> None:
    """Scores the model on all tasks whose file in the folder is missing; see `mteb_tasks.score_mteb`."""
    config, device = run.tasks.config, evaluation_task.device_of_task(run.shared_by)
    with hushed(), tempfile.TemporaryDirectory() as place:
        vector_folder(run, Path(place, "model"))
        model = SentenceTransformer(
            str(Path(place, "model")),
            device=str(device),
            local_files_only=True,
            model_kwargs={"use_safetensors": True, "dtype": "float32"},
        )
        own = {task.name: task for task in config.own}
        with evaluation_task.token_counter(model[0]) as count:
            for name in (*config.tasks, *own):
                if not (folder / file_name(name)).exists():
                    begin, before = time.monotonic(), count[0]
                    with told_of_task(name):
                        task = (
                            own_task(own[name])
                            if name in own
                            else mteb.get_task(name, languages=config.languages or None)
                        )
                        items = mteb_scores(model, task, config.batch_size, Path(place, "predictions"))
                    took = time.monotonic() - begin
                    write_items(folder, name, replace(items, tokens=count[0] - before, seconds=took))


def vector_folder(run: MtebRun, folder: Path) -> None:
    """Makes a folder in the format of sentence-transformers, with links to the files of model and tokenizer."""
    folder.mkdir(parents=True)
    files = [file for file in run.pretrained.model.iterdir() if file.is_file()]
    for file in [*locate.tokenizer_files(run.pretrained.tokenizer), *files]:
        if not (folder / file.name).exists():
            link_or_copy(file.resolve(), folder / file.name)
    sentence_vectors.write_sentence_vectors(run.vectors, folder)


def own_task(of: OwnMtebTask) -> Any:
    """Builds a task of MTEB from the user's files."""
    kind, category, main = TYPES[of.kind]
    base = {"classification": AbsTaskClassification, "sts": AbsTaskSTS, "retrieval": AbsTaskRetrieval}[of.kind]
    metadata = TaskMetadata(
        name=of.name,
        description="Task of the user.",
        type=kind,
        category=category,
        dataset={"path": "own files", "revision": "1"},
        eval_splits=[SPLIT],
        eval_langs=["eng-Latn"],  # MTEB needs a language, which does not change the score
        main_score=main,
    )
    task = type(f"Own{kind}", (base,), {"metadata": metadata})()
    if of.kind == "retrieval":
        with naming_fields_of(of):
            search = retrieval.read_search(as_retrieval(of))
        relevant = {f"q{n}": {f"d{place}": 1 for place in places} for n, places in enumerate(search.relevant)}
        queries, corpus = (
            Dataset.from_dict({"id": [f"{mark}{n}" for n in range(len(texts))], "text": texts})
            for mark, texts in (("q", search.queries), ("d", search.documents))
        )
        split = {"queries": queries, "corpus": corpus, "relevant_docs": relevant, "top_ranked": None}
        task.dataset = {"default": {SPLIT: split}}
    else:
        splits = {
            name: list(own_rows(of, name)) for name in (SPLIT, *(["train"] if of.kind == "classification" else []))
        }
        labels = sorted({row["label"] for rows in splits.values() for row in rows if "label" in row})
        numbers = {label: number for number, label in enumerate(labels)}
        for rows in splits.values():
            for row in rows:
                row |= {"label": numbers[row["label"]]} if "label" in row else {}
        task.dataset = DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})
    task.data_loaded = True
    return task


def mteb_scores(model: Any, task: Any, batch_size: int, predictions: Path) -> TaskItems:
    """Scores a model on one task."""
    if not task.data_loaded:
        task.load_data()
    ranked = _measures_of_queries(task)
    found = mteb.evaluate(
        model,
        task,
        cache=None,
        co2_tracker=False,
        overwrite_strategy="always",
        show_progress_bar=False,
        encode_kwargs={"batch_size": batch_size, "show_progress_bar": False},
        prediction_folder=predictions,
    )
    (result,) = found.task_results
    file = predictions / f"{task.metadata.name}_predictions.json"
    predicted = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    subsets = [(split, of["hf_subset"], of) for split, scores in result.scores.items() for of in scores]
    if len(subsets) > 1:  # the score is a mean over subsets, which is not a statistic of items
        measure = ItemMeasure(float(result.get_score()), True)
        return TaskItems("mteb", len(subsets), {task.metadata.main_score: measure}, [], None)
    ((split, subset, scores),) = subsets
    given = predicted.get(subset, {}).get(split)
    return items_of_subset(task, split, subset, scores, given, ranked)


def _measures_of_queries(task: Any) -> dict[str, dict[str, float]]:
    """Makes a retrieval task store the measures of each query, and returns the dict that will contain them."""
    kept: dict[str, dict[str, float]] = {}
    if hasattr(task, "task_specific_scores"):
        original = task.task_specific_scores

        def keeping(scores: Mapping[str, dict[str, float]], *rest: Any, **named: Any) -> Any:
            kept.update({str(query): dict(of) for query, of in scores.items()})
            return original(scores, *rest, **named)

        task.task_specific_scores = keeping
    return kept


def items_of_subset(
    task: Any,
    split: str,
    subset: str,
    scores: Mapping[str, Any],
    predicted: Any,
    ranked: Mapping[str, Mapping[str, float]],
) -> TaskItems:
    """Returns the scores per item of a subset of a task.

    `predicted` is None if MTEB saved no predictions. `ranked` has the measures of each query of a retrieval task.
    """
    main, rows = task.metadata.main_score, _rows(task, split, subset)
    score = float(scores["main_score"])
    if isinstance(task, AbsTaskRetrieval) and ranked:
        name, _, depth = main.partition("_at_")
        column = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "precision": "P"}.get(name, name)
        queries = dict(zip(map(str, rows["queries"]["id"]), rows["queries"]["text"], strict=True))
        values = [of.get(f"{column}_{depth}") for of in ranked.values()]
        return _items(
            {main: ItemMeasure.of(score, True, "mean", values)}, [[_text(queries[query])] for query in ranked]
        )
    if isinstance(task, AbsTaskSTS) and predicted:
        columns = [str(column) for column in task.column_names]
        truth, cosines = list(rows["score"]), predicted["cosine_scores"]
        measure = ItemMeasure.of(
            score, True, "spearman" if main == "cosine_spearman" else "", [*zip(truth, cosines, strict=True)]
        )
        return _items(
            {main: measure}, [[*map(_text, pair)] for pair in zip(*(rows[name] for name in columns), strict=True)]
        )
    if isinstance(task, AbsTaskClassification) and predicted and isinstance(task.input_column_name, str):
        texts = [[_text(text)] for text in rows[task.input_column_name]]
        if np.shape(predicted)[1:] == (len(texts),):
            hits = np.array(predicted) == np.array(rows[task.label_column_name])
            accuracy = ItemMeasure.of(float(scores["accuracy"]), True, "mean", hits.mean(0).tolist())
            return _items(
                {main: ItemMeasure(score, True), "accuracy": accuracy} if main != "accuracy" else {main: accuracy},
                texts,
            )
    count = len(rows) if hasattr(rows, "__len__") else 0
    return TaskItems("mteb", count, {main: ItemMeasure(score, True)}, [], None)


def _items(measures: dict[str, ItemMeasure], texts: Sequence[list[str]]) -> TaskItems:
    digests = [hashlib.sha256("\0".join(item).encode("utf-8", "replace")).hexdigest()[:16] for item in texts]
    return TaskItems("mteb", len(texts), measures, digests, list(texts))


def _rows(task: Any, split: str, subset: str) -> Any:
    data = task.dataset
    return data[subset][split] if subset in data else data[split]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

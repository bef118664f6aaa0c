"""Search for test items in token shards, by the rule that removes evaluation texts from a corpus."""

from pathlib import Path

import numpy as np

from adapt.corpus.decontamination import build_index
from adapt.corpus.token_shards import write_shard
from adapt.evaluate.benchmark.benchmark_leaks import ShardSearch, items_index
from adapt.evaluate.benchmark.item_scores import TaskItems
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from tests.evaluate.benchmark.tiny_tasks import mean_of
from tests.samples import sentences


def test_items_are_found_in_the_tokens_of_a_training(tiny_bert: Path, tmp_path: Path) -> None:
    texts = sentences(40, seed=8, shortest=20, longest=30)
    documents = [*texts[:10], f"{texts[10]} {texts[11]} {texts[12]}", "a short text of model and loss"]
    tokenizer = load_tokenizer(tiny_bert)
    shard = tmp_path / "train-00000.arrow"
    write_shard(shard, [tokenizer(text)["input_ids"] for text in documents], len(tokenizer))
    half = texts[13].split()
    items = [
        [texts[3].upper()],  # the tokenizer lowers text
        [texts[20]],
        ["unknown", texts[11]],  # a part of a document; one text of several suffices
        [" ".join(texts[4].split()[:6] + half)],  # a quotation is no copy
        ["A short text of model, and loss"],  # few words: only a document of exactly these words counts
        ["text of model"],
    ]
    tasks = {
        "plain": TaskItems("harness", 2, {"acc": mean_of([0, 1])}, ["0", "1"], items[:2]),
        "unknown": TaskItems("mteb", 3, {"acc": mean_of([0, 1, 1])}, ["0", "1", "2"], None),
        "rest": TaskItems("mteb", 4, {"acc": mean_of([0, 1, 1, 0])}, ["0", "1", "2", "3"], items[2:]),
    }
    pretrained = Pretrained(tiny_bert, tiny_bert)
    found = np.concatenate([*ShardSearch(items_index(tasks, pretrained, 13, 0.5), pretrained)(shard)])
    assert found.tolist() == [0, 5, 7]  # numbers over all tasks; items 2 to 4 have no texts


def test_contained_texts_are_those_for_which_documents_are_dropped() -> None:
    texts = sentences(30, seed=9, shortest=15, longest=25)
    index = build_index([(f"set {n}", [text]) for n, text in enumerate(texts)], 13, 0.5)
    documents = [f"{texts[2]} {texts[5]}", texts[7], "nothing of it"]
    dropped = index.many(documents)
    assert dropped[1:] == ["in evaluation set set 7", None]
    assert index.contained(documents).tolist() == [2, 5, 7]
    assert index.contained([]).tolist() == index.contained(["nothing"]).tolist() == []

"""Tests merging the rows of new tokens. The mean of the models with these rows replaces the base's rows."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, GPT2Config, LlamaConfig, ModernBertConfig, PreTrainedConfig, RobertaConfig

from adapt.merge.compatibility import NewTokens
from adapt.merge.tensor_files import Names, NewRows
from adapt.support.errors import ModelError
from tests.merge.folders import extended, folder_of, merged_in, moved, weights_in

TABLE, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
WORDS = ["qubit", "gluon", "hadron"]


@pytest.fixture
def base(tiny_bert: Path) -> dict[str, Tensor]:
    return weights_in(tiny_bert)


@pytest.fixture
def first(base: dict[str, Tensor]) -> int:
    return len(base[BIAS])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_new_rows_of_one_model_are_unchanged_at_every_share(
    tmp_path: Path, tiny_bert: Path, base: dict[str, Tensor], first: int, share: float
) -> None:
    """Rows of new tokens and a padding row are copied from the model. Rows of the base are interpolated."""
    model = extended(tmp_path / "model", tiny_bert, WORDS, filling=1)
    tokens = NewTokens(first, 3, (0,))
    found = weights_in(merged_in(tmp_path / "out", tiny_bert, model, share=share, tokens=tokens))
    theirs = weights_in(model)
    assert found.keys() == base.keys()
    for name, one in base.items():
        assert torch.equal(
            found[name][: len(one)] if one.dim() else found[name], one.lerp(theirs[name][: len(one)], share)
        )
    for name in (TABLE, BIAS):
        assert len(found[name]) == first + 4
        assert torch.equal(found[name][first:], theirs[name][first:])


@pytest.mark.parametrize("kind", ["average", "task_arithmetic", "ties", "dare"])
def test_new_rows_of_several_models_are_merged_around_their_mean(
    tmp_path: Path, tiny_bert: Path, base: dict[str, Tensor], first: int, kind: str
) -> None:
    """The mean of the new rows replaces the base's rows. A model without new rows is left out of the mean."""
    models = [extended(tmp_path / f"{seed}", tiny_bert, WORDS, seed=seed) for seed in (1, 2)]
    old = folder_of(tmp_path / "old", moved(base, 3), like=tiny_bert)
    tokens = NewTokens(first, 3, (0, 2))
    given = (models[0], old, models[1])
    found = weights_in(merged_in(tmp_path / "out", tiny_bert, *given, kind=kind, share=0.4, tokens=tokens))

    means = {name: torch.stack([weights_in(each)[name][first:] for each in models]).mean(0) for name in (TABLE, BIAS)}
    full = {
        folder: {
            name: torch.cat([one, means[name]]) if name in means else one for name, one in weights_in(folder).items()
        }
        for folder in (tiny_bert, old)
    }
    wide_base = folder_of(tmp_path / "wide-base", full[tiny_bert], like=tiny_bert)
    wide_old = folder_of(tmp_path / "wide-old", full[old], like=tiny_bert)
    for folder in (wide_base, wide_old):
        (folder / "config.json").write_text((models[0] / "config.json").read_text())
    given = (models[0], wide_old, models[1])
    expected = weights_in(merged_in(tmp_path / "expected", wide_base, *given, kind=kind, share=0.4))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_padding_rows_of_the_base_are_replaced(first: int, tiny_bert: Path) -> None:
    rows = NewRows(NewTokens(first - 2, 2, (0,)), Names(tiny_bert))
    old, new = torch.zeros(first, 4), torch.ones(first, 4)
    base, (one, other) = rows.widen(TABLE, old, [new, old])
    for found in (base, other):
        assert torch.equal(found, torch.cat([old[:-2], new[-2:]]))
    assert one is new
    same, (kept,) = rows.widen("bert.embeddings.LayerNorm.weight", old[0], [new[0]])
    assert torch.equal(same, old[0])
    assert torch.equal(kept, new[0])


def test_files_and_index_grow_with_new_rows(
    tmp_path: Path, tiny_bert: Path, base: dict[str, Tensor], first: int
) -> None:
    """The base has two weight files and also stores its tied output head. Both grow by the rows of new tokens."""
    tied = "cls.predictions.decoder.weight"
    shards = [{TABLE: base[TABLE], tied: base[TABLE].clone()}, {n: one for n, one in base.items() if n != TABLE}]
    folder = folder_of(tmp_path / "base", *shards, like=tiny_bert)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps({**content, "metadata": {"total_size": 1000}}))
    model = extended(tmp_path / "model", tiny_bert, WORDS)
    out = merged_in(tmp_path / "out", folder, model, tokens=NewTokens(first, 3, (0,)))
    files = [load_file(file) for file in sorted(out.glob("*.safetensors"))]
    assert [file.keys() for file in files] == [shard.keys() for shard in shards]
    assert torch.equal(files[0][tied], files[0][TABLE])
    written = json.loads((out / index.name).read_text())
    width = base[TABLE].shape[1]
    assert written == {**content, "metadata": {"total_size": 1000 + 3 * 4 * (2 * width + 1)}}


def test_models_with_different_numbers_of_new_rows_are_refused(tmp_path: Path, tiny_bert: Path, first: int) -> None:
    one = extended(tmp_path / "one", tiny_bert, WORDS)
    two = extended(tmp_path / "two", tiny_bert, WORDS, filling=5)
    with pytest.raises(ModelError, match="2 tensors have another shape"):
        merged_in(tmp_path / "out", tiny_bert, one, two, kind="ties", tokens=NewTokens(first, 3, (0, 1)))
    assert not [*(tmp_path / "out").iterdir()]


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (BertConfig(), {TABLE, BIAS}),
        (RobertaConfig(), {"roberta.embeddings.word_embeddings.weight", "lm_head.bias"}),
        (ModernBertConfig(), {"model.embeddings.tok_embeddings.weight", "decoder.bias"}),
        (GPT2Config(), {"transformer.wte.weight"}),
        (LlamaConfig(tie_word_embeddings=False), {"model.embed_tokens.weight", "lm_head.weight"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tensors_with_one_row_per_token_are_recognized(
    tmp_path: Path, config: PreTrainedConfig, found: set[str]
) -> None:
    """Tensors that share memory are listed once, under the first of their names."""
    config.save_pretrained(tmp_path)
    assert Names(tmp_path).by_token == found

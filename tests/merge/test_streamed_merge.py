"""Tests merges of files: results keep the base's names, types, shards and tied tensors. Bad models are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, GPT2Config, LlamaConfig, ModernBertConfig, PreTrainedConfig, RobertaConfig

from adapt.merge.compatibility import NewTokens
from adapt.merge.streamed_merge import Names, NewRows
from adapt.support.errors import ModelError
from tests.handover.models import bytewise, decoder
from tests.merge.folders import extended, folder_of, merged_in, moved, weights_in

PLAIN: dict[str, Tensor] = {
    "b.weight": torch.arange(6.0).reshape(2, 3),
    "a.weight": torch.linspace(-3, 3, 8).to(torch.bfloat16),
    "half": torch.tensor([1.5, -2.25], dtype=torch.float16),
    "double": torch.tensor(2.5, dtype=torch.float64),
    "position_ids": torch.arange(9),
    "mask": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
}


def test_types_names_and_integers_are_those_of_the_base(tmp_path: Path) -> None:
    """Models in fp32 and a base in bf16 are merged in fp32. The result has the data types of the base."""
    base = folder_of(tmp_path / "base", PLAIN)
    other = {name: one.float() + 1 if one.is_floating_point() else one + one for name, one in PLAIN.items()}
    model = folder_of(tmp_path / "model", other)
    found = weights_in(merged_in(tmp_path / "out", base, model, share=0.25))
    assert found.keys() == PLAIN.keys()
    for name, one in PLAIN.items():
        assert found[name].dtype == one.dtype
        expected = (one.float() * 0.75 + other[name] * 0.25).to(one.dtype) if one.is_floating_point() else one
        assert torch.equal(found[name], expected), name


def test_a_base_merged_with_itself_gives_an_identical_file(tmp_path: Path) -> None:
    base = folder_of(tmp_path / "base", PLAIN)
    out = merged_in(tmp_path / "out", base, base)
    assert (out / "model.safetensors").read_bytes() == (base / "model.safetensors").read_bytes()


def test_the_result_has_the_files_of_the_base(tmp_path: Path) -> None:
    names = sorted(PLAIN)
    first, second = ({name: PLAIN[name] for name in part} for part in (names[:3], names[3:]))
    base = folder_of(tmp_path / "base", first, second)
    whole = folder_of(tmp_path / "whole", PLAIN)
    other = moved(PLAIN, 1)
    model = folder_of(tmp_path / "model", other)
    split = folder_of(tmp_path / "split", *({name: other[name]} for name in names))
    expected = weights_in(merged_in(tmp_path / "one", whole, model, kind="ties"))
    for number, given in enumerate((model, split)):
        out = merged_in(tmp_path / f"out-{number}", base, given, kind="ties")
        assert load_file(out / "model-00001-of-00002.safetensors").keys() == first.keys()
        assert (out / "model.safetensors.index.json").read_text() == (base / "model.safetensors.index.json").read_text()
        found = weights_in(out)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_dare_does_not_depend_on_the_order_of_tensors_or_on_files(tmp_path: Path) -> None:
    weights = {name: torch.zeros(50) for name in "abc"}
    model = folder_of(tmp_path / "model", {name: torch.ones(50) for name in weights})
    for place in ("whole", "parts"):
        shards = [weights] if place == "whole" else [{"c": weights["c"]}, {"a": weights["a"], "b": weights["b"]}]
        base = folder_of(tmp_path / place, *shards)
        # These folders have no config.json, so names of tied tensors cannot be looked up.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("adapt.merge.streamed_merge.Names.first", lambda names, name: name)
            merged_in(tmp_path / f"{place}-out", base, model, kind="dare")
    one, two = (weights_in(tmp_path / f"{place}-out") for place in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in weights)


# --- a real architecture


@pytest.fixture(scope="module")
def bert(tiny_bert: Path) -> dict[str, Tensor]:
    return weights_in(tiny_bert)


TABLE = "bert.embeddings.word_embeddings.weight"


def test_a_tied_head_that_only_one_model_stores_is_matched(
    tmp_path: Path, tiny_bert: Path, bert: dict[str, Tensor]
) -> None:
    """Tied tensors stay equal, even if a merge drops elements at random (DARE)."""
    tied = "cls.predictions.decoder.weight"
    assert tied not in bert
    both = folder_of(tmp_path / "both", {**bert, tied: bert[TABLE].clone()}, like=tiny_bert)
    changed = moved(bert, 2)
    model = folder_of(tmp_path / "model", changed, like=tiny_bert)
    for kind in ("interpolate", "dare"):
        found = weights_in(merged_in(tmp_path / f"{kind}-both", both, model, kind=kind))
        assert torch.equal(found[tied], found[TABLE])
        alone = weights_in(merged_in(tmp_path / f"{kind}-one", tiny_bert, model, kind=kind))
        assert alone.keys() == bert.keys()
        assert torch.equal(alone[TABLE], found[TABLE])
    head = {name: one for name, one in changed.items() if name != TABLE} | {tied: changed[TABLE]}
    other = folder_of(tmp_path / "head", head, like=tiny_bert)
    assert torch.equal(
        weights_in(merged_in(tmp_path / "of-head", tiny_bert, other))[TABLE], bert[TABLE].lerp(changed[TABLE], 0.5)
    )


def test_a_head_that_only_the_model_unties_is_refused(tmp_path: Path) -> None:
    """Merging would keep one of two tensors that differ, and lose the other."""
    base = llama(tmp_path / "base", tie_word_embeddings=True)
    model = llama(tmp_path / "model", tie_word_embeddings=False)
    assert "lm_head.weight" in weights_in(model).keys() - weights_in(base).keys()
    with pytest.raises(ModelError, match=r"lm_head\.weight .*differ, but the base uses one tensor for both"):
        merged_in(tmp_path / "out", base, model, share=1.0)
    assert not any((tmp_path / "out").iterdir())


def llama(folder: Path, **settings: Any) -> Path:
    return decoder(folder, "llama", bytewise(), **settings)


def test_old_names_missing_prefixes_and_extra_parts_are_matched(
    tmp_path: Path, tiny_bert: Path, bert: dict[str, Tensor]
) -> None:
    """Some Hub checkpoints have old tensor names, such as LayerNorm.gamma, which transformers renames on loading."""
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): one
        for name, one in bert.items()
    }
    old = {name.removeprefix("bert."): one for name, one in old.items()} | {"pooler.dense.bias": torch.ones(32)}
    base = folder_of(tmp_path / "base", old, like=tiny_bert)
    changed = moved(bert, 3)
    model = folder_of(tmp_path / "model", {**changed, "bert.extra.weight": torch.ones(2)}, like=tiny_bert)
    found = weights_in(merged_in(tmp_path / "out", base, model))
    assert found.keys() == old.keys()
    assert torch.equal(found["pooler.dense.bias"], torch.ones(32))
    norm = "embeddings.LayerNorm"
    assert torch.equal(found[f"{norm}.gamma"], bert[f"bert.{norm}.weight"].lerp(changed[f"bert.{norm}.weight"], 0.5))
    assert not torch.equal(found[f"{norm}.gamma"], old[f"{norm}.gamma"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda w: {name: one for name, one in w.items() if "layer.1." not in name},
            "lacks the tensors bert.encoder.layer.1",
        ),
        (lambda w: {**w, TABLE: torch.cat([w[TABLE], w[TABLE][:1]])}, "word_embeddings.weight: "),
        (
            lambda w: {name: one for name, one in w.items() if name.startswith("bert.")},
            "lacks the tensors cls.predictions",
        ),
    ],
)
def test_differing_tensors_are_refused_before_anything_is_written(
    tmp_path: Path, tiny_bert: Path, bert: dict[str, Tensor], change: object, said: str
) -> None:
    model = folder_of(tmp_path / "model", change(bert), like=tiny_bert)  # type: ignore[operator]
    with pytest.raises(ModelError, match="has a different architecture than the base") as caught:
        merged_in(tmp_path / "out", tiny_bert, model)
    assert said in str(caught.value)
    assert str(model) in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []
    if "lacks" in said:
        with pytest.raises(ModelError, match="also has"):
            merged_in(tmp_path / "back", model, tiny_bert)


def test_quantized_weights_and_broken_files_are_refused(tmp_path: Path) -> None:
    base = folder_of(tmp_path / "base", PLAIN)
    coded = {**PLAIN, "b.weight": PLAIN["b.weight"].to(torch.float8_e4m3fn)}
    with pytest.raises(ModelError, match=r"b\.weight in .* is of type F8_E4M3"):
        merged_in(tmp_path / "one", folder_of(tmp_path / "coded", coded), base)
    broken = folder_of(tmp_path / "broken", PLAIN)
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ModelError, match="truncated"):
        merged_in(tmp_path / "two", base, broken)


@pytest.mark.parametrize("kind", ["interpolate", "ties", "average"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", ["base", "model"])
def test_a_tensor_that_is_not_finite_is_named(tmp_path: Path, place: str, value: float, kind: str) -> None:
    broken = {name: one.clone() for name, one in PLAIN.items()}
    broken["b.weight"][1, 2] = value
    base = folder_of(tmp_path / "base", broken if place == "base" else PLAIN)
    model = folder_of(tmp_path / "model", broken if place == "model" else moved(PLAIN, 1))
    with pytest.raises(ModelError, match=rf"/{place}: the tensor b\.weight has values that are not finite: 1 .* of 6"):
        merged_in(tmp_path / "out", base, model, kind=kind)


def test_merged_weights_that_exceed_the_type_of_the_base_are_refused(tmp_path: Path) -> None:
    base = folder_of(tmp_path / "base", {"half": torch.full((2,), 60_000.0, dtype=torch.float16)})
    model = folder_of(tmp_path / "model", {"half": torch.full((2,), 65_000.0, dtype=torch.float16)})
    with pytest.raises(ModelError, match=r"the merged model at share 4: the tensor half .* 2 infinite of 2") as caught:
        merged_in(tmp_path / "out", base, model, share=4)
    assert "merge.shares" in caught.value.fix


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
    """Rows of new tokens and a padding row are copied from the extended model. Other rows are interpolated."""
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
    """The base has two weight files, and also stores its tied output head. New tokens add rows to both files."""
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
    with pytest.raises(ModelError, match="2 tensors have different shapes"):
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

"""Compares objective `tsdae` with a `transformers` decoder that has cross-attention and tied weights, text by text."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from adapt.config import Config, MethodConfig, MixtureConfig, ObjectiveConfig, PhaseConfig
from adapt.job.training_jobs import dapt_stages
from adapt.method.table import check_method
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import Batch, Corrupted
from adapt.objective.table import TsdaeOptions
from adapt.objective.tsdae import CROSS
from adapt.parse import parse
from adapt.stage.context import Context
from adapt.support.errors import ConfigError
from adapt.train.model_options import checkpoint
from adapt.train.phases import check_phases
from tests.job.worlds import dapt_world
from tests.model.families import plain

FIRST, LAST = 3, 4
TOKENIZER: Any = SimpleNamespace(mask_token_id=5, all_special_ids=[0, 1, 2, 3, 4, 5], cls_token_id=FIRST)
TEXTS = [[FIRST, *range(10, 19), LAST], [FIRST, 20, LAST], [FIRST, *range(21, 28), LAST], [FIRST, *range(30, 36), LAST]]
WORDS = [0, 1, 3, 4, 5, 6, 8, 9, 10]
"""Positions in a text at which words start. Every token after position 10 is a separate word."""


class Sized(SimpleNamespace):
    def __len__(self) -> int:
        return 50

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(50)}


def rows(length: int = 16, copies: int = 1, epoch: int = 0) -> Batch:
    """Joins the texts and splits them into rows of `length` tokens. The last text is split at the end of a row."""
    tokens = [token for text in TEXTS for token in text]
    starts = [place == 0 for text in TEXTS for place in range(len(text))]
    words = [place in WORDS or place > 10 for text in TEXTS for place in range(len(text))]
    count = -(-len(tokens) // length)

    def filled(values: list[Any]) -> Tensor:
        padded = torch.tensor([*values, *[0] * (count * length - len(values))])
        return padded.reshape(count, length).repeat(copies, 1)

    lengths = torch.tensor([min(length, len(tokens) - length * row) for row in range(count)]).repeat(copies)
    begins = filled(starts).bool()
    begins[:, 0] = True
    numbers = torch.arange(count * copies)
    return Batch(filled(tokens), lengths, numbers * 0 + epoch, numbers, begins, {"word_starts": filled(words).bool()})


def objective(seed: int = 0, **options: Any) -> Any:
    return make(ObjectiveConfig("tsdae"), Sized(**vars(TOKENIZER)), seed, TsdaeOptions(**options))


def pieces(denoised: Corrupted) -> list[tuple[Tensor, Tensor]]:
    """Returns the tokens of each text, and for each token whether the encoder sees it."""
    found = []
    for row in range(len(denoised.input_ids)):
        begins = [*denoised.starts[row].nonzero().flatten().tolist(), int(denoised.real[row].sum())]
        for begin, end in itertools.pairwise(begins):
            found.append((denoised.input_ids[row, begin:end], denoised.kept[row, begin:end]))  # type: ignore[index]
    return found


def decoder_of(model: PreTrainedModel, prepared: PreTrainedModel) -> PreTrainedModel:
    """Returns a `transformers` decoder with the encoder's weights, and with the new weights in its cross-attention."""
    config = copy.deepcopy(model.config)
    config.is_decoder = config.add_cross_attention = True
    config.tie_word_embeddings = True
    decoder: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    weights = dict(model.state_dict())
    for name, value in prepared.state_dict().items():
        if f".{CROSS}." in name:
            place = name.replace(f".attention.{CROSS}.value", f".{CROSS}.self.value")
            place = place.replace(f".attention.{CROSS}.dense", f".{CROSS}.output.dense")
            weights[place.replace(f".attention.{CROSS}.norm", f".{CROSS}.output.LayerNorm")] = value
    missing, unexpected = decoder.load_state_dict(weights, strict=False)
    assert not unexpected
    # with a single vector to attend to, queries and keys have no effect
    assert all(".query." in name or ".key." in name for name in missing)
    return decoder


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_losses_and_gradients_are_those_of_transformers_decoder(family: str, pooling: str) -> None:
    model = plain(family)
    prepared = copy.deepcopy(model)
    keep_documents_apart(prepared)
    tsdae = objective(pooling=pooling)
    tsdae.prepare(prepared)
    for module in prepared.modules():
        # enlarges the weights of the cross-attention, so that the text's vector has an effect
        if type(module).__name__ == "VectorAttention":
            torch.nn.init.normal_(module.value.weight, 0, 0.2)
            torch.nn.init.normal_(module.dense.weight, 0, 0.2)
    denoised = tsdae.corrupt(rows())
    decoder = decoder_of(model, prepared)
    expected = []
    for tokens, kept in pieces(denoised):
        states = model.base_model(input_ids=tokens[kept][None]).last_hidden_state
        vector = states[:, 0] if pooling == "cls" else states.mean(1)
        if len(tokens) > 1:
            logits = decoder(input_ids=tokens[None], encoder_hidden_states=vector[:, None], use_cache=False).logits
            expected.append(cross_entropy(logits[0, :-1], tokens[1:], reduction="none"))
    found = tsdae.losses(prepared, denoised)
    torch.testing.assert_close(found, torch.cat(expected).detach(), rtol=1e-4, atol=1e-5)

    torch.cat(expected).sum().backward()
    tsdae.loss(prepared, denoised).backward()
    theirs, also = dict(model.named_parameters()), dict(decoder.named_parameters())
    for name, parameter in prepared.named_parameters():
        if name in theirs and not name.endswith("key.bias"):
            parts = [each[name].grad for each in (theirs, also) if name in each and each[name].grad is not None]
            if parts:  # the gradient of a shared weight is the sum of encoder and decoder
                torch.testing.assert_close(parameter.grad, torch.stack(parts).sum(0), rtol=1e-3, atol=1e-4)


def test_gradients_are_the_same_with_checkpointing_and_in_micro_batches() -> None:
    model = plain("bert")
    keep_documents_apart(model)
    tsdae = objective(pooling="mean")
    tsdae.prepare(model)
    other = copy.deepcopy(model)
    checkpoint(other)
    other.train()
    for module in other.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    denoised = tsdae.corrupt(rows(copies=2))
    tsdae.loss(model, denoised).backward()
    for part in denoised.split(1):
        tsdae.loss(other, part).backward()
    theirs = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(theirs[name].grad, parameter.grad, rtol=1e-3, atol=1e-5)


def test_words_are_deleted_as_a_whole_and_one_stays() -> None:
    deleted, total = 0, 0
    for epoch in range(200):
        batch = rows(length=64, epoch=epoch)
        denoised = objective().corrupt(batch)
        for number, (tokens, kept) in enumerate(pieces(denoised)):
            assert kept[0]
            assert kept[-1]  # the first and last token are special tokens, which are not deleted
            words = [place in WORDS or place > 10 for place in range(len(tokens))]
            starts = [place for place in range(1, len(tokens) - 1) if words[place]]
            groups = [kept[begin:end] for begin, end in zip(starts, [*starts[1:], len(tokens) - 1], strict=True)]
            assert all(group.all() or not group.any() for group in groups)
            assert any(group.all() for group in groups), number
            if len(groups) > 4:
                deleted += sum(not group.any() for group in groups)
                total += len(groups)
    assert deleted / total == pytest.approx(0.6, abs=0.04)


def test_deletions_depend_on_seed_epoch_and_place_alone() -> None:
    whole = objective().corrupt(rows(copies=3))
    again = objective().corrupt(rows(copies=3))
    assert torch.equal(whole.kept, again.kept)
    batch = rows(copies=3)
    some = Batch(
        *(getattr(batch, name)[2:4] for name in ("tokens", "lengths", "epochs", "rows", "starts")),
        {name: of[2:4] for name, of in batch.marks.items()},
    )
    assert torch.equal(objective().corrupt(some).kept, whole.kept[2:4])
    assert not torch.equal(whole.kept, objective(seed=1).corrupt(rows(copies=3)).kept)
    assert not torch.equal(whole.kept, objective().corrupt(rows(copies=3, epoch=1)).kept)
    split = whole.split(2)
    assert torch.equal(torch.cat([part.kept for part in split]), whole.kept)
    assert torch.equal(torch.cat([part.targets for part in split]), whole.targets)


def test_a_text_that_a_row_divides_begins_with_its_own_first_token() -> None:
    denoised = objective().corrupt(rows(length=16))
    assert [tokens[0].item() for tokens, _ in pieces(denoised)] == [FIRST] * 5


def test_new_weights_depend_on_the_seed_and_are_not_exported() -> None:
    models = [plain("bert") for _ in range(3)]
    for model, seed in zip(models, [0, 0, 1], strict=True):
        torch.manual_seed(len(models) + seed)
        objective(seed).prepare(model)
    first, second, other = ({name: of for name, of in m.state_dict().items() if CROSS in name} for m in models)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert objective().exported(models[0].state_dict()).keys() == plain("bert").state_dict().keys()


def test_what_cannot_be_trained_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(dapt_world(tmp_path, monkeypatch), objective=ObjectiveConfig("tsdae"))
    dapt_stages(Context.of(config))
    with pytest.raises(ConfigError, match=r"method\.kind das does not work with objective\.kind tsdae"):
        check_method(replace(config, method=MethodConfig("das")), Path("model"))
    replayed = replace(config, mixture=MixtureConfig(replay_paths="data/b.jsonl"))
    check_method(replace(replayed, method=MethodConfig("replay")), Path("model"))
    phases = [PhaseConfig(steps=2, objective={"kind": "tsdae"}), PhaseConfig(steps=2)]
    plain_config = replace(config, objective=ObjectiveConfig())
    with pytest.raises(ConfigError, match=r"training\.phases has the objectives tsdae and mlm, but tsdae trains"):
        check_phases(replace(plain_config, training=replace(config.training, phases=phases)))
    for kind in ("gpt2", "distilbert", "modernbert"):
        (tmp_path / "model" / "config.json").write_text(f'{{"model_type": "{kind}"}}')
        with pytest.raises(ConfigError, match=rf"tsdae needs an encoder .* is of type {kind}"):
            Context.of(config)
    with pytest.raises(ConfigError, match=r"tsdae\.pooling takes cls, mean, not max"):
        parse(["--objective.kind", "tsdae", "--tsdae.pooling", "max", "--corpus.paths", "a.jsonl"], "dapt")


def test_options_enter_keys_and_the_unit_changes_the_prepared_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(dapt_world(tmp_path, monkeypatch), objective=ObjectiveConfig("tsdae"))

    def keys(**options: Any) -> dict[str, str]:
        export = dapt_stages(Context.of(replace(config, objective_options=TsdaeOptions(**options))))
        assert export.vectors
        return {"text": export.domain.key, "training": export.training.key, "pooling": export.vectors.pooling}

    plain_keys = keys()
    assert plain_keys == keys(delete_fraction=0.6)
    assert plain_keys["pooling"] == "cls"
    changed = keys(delete_fraction=0.5)
    assert (changed["text"], changed["training"] != plain_keys["training"]) == (plain_keys["text"], True)
    assert keys(unit="document")["text"] != plain_keys["text"]
    assert keys(pooling="mean")["pooling"] == "mean"
    assert Config().objective_options is None


def test_the_tokenizer_gives_the_first_token(tiny_bert: Path) -> None:
    made: Any = make(ObjectiveConfig("tsdae"), load_tokenizer(tiny_bert), 0)
    assert made.first_id == load_tokenizer(tiny_bert).cls_token_id
    assert made.options == TsdaeOptions()

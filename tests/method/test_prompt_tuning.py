"""Tests prompts and prefixes per domain: trained parameters, the saved model, and refused settings."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adapt.config import (
    Config,
    CorpusConfig,
    EvaluationConfig,
    MethodConfig,
    ObjectiveConfig,
    PhaseConfig,
    TrainingConfig,
)
from adapt.corpus.token_shards import write_shard
from adapt.method.base import Added, Setting
from adapt.method.domain_parameters import Prefixed, PrefixOptions, Prompted, PromptOptions, check_room
from adapt.model.additions.domain_modules import domains_of, sets_of
from adapt.model.load import load_model, save_model
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import AdaptError, ModelError
from adapt.train.capacity.flops import workload
from adapt.train.capacity.memory import Demand
from tests.method.lora.test_method import logits
from tests.train.capacity.test_memory import ROBERTA


def learnt(folder: Path, domain: str, target: Path, **options: Any) -> Any:
    """Imitates training of a domain's prompt by adding 1 to the trainable parameters, and saves the model."""
    method = Prompted(PromptOptions(length=4, **options))
    model = method.prepare_model(load_model(folder), Setting(domain=domain))
    for parameter in model.parameters():
        parameter.data += parameter.requires_grad
    state = method.merge(model.state_dict())
    save_model(folder, state, load_tokenizer(folder), target, resize=method.resize)
    return model


def test_a_domain_trains_only_its_own_prompt(tiny_bert: Path, tmp_path: Path) -> None:
    first = learnt(tiny_bert, "cs", tmp_path / "one")
    second = learnt(tmp_path / "one", "bio", tmp_path / "two")
    assert {name for name, each in second.named_parameters() if each.requires_grad} == {"bert.prompts.1.vectors"}
    before, after = first.state_dict(), load_model(tmp_path / "two").state_dict()
    assert {name for name in after if name not in before} == {"bert.prompts.1.vectors"}
    assert all(torch.equal(before[name], after[name]) for name in before if name != "bert.domains.vectors")
    known = domains_of(load_model(tmp_path / "two"))
    assert known is not None
    assert known.names == ["cs", "bio"]
    # a second training on "cs" starts from the prompt of "cs"
    again = learnt(tmp_path / "two", "cs", tmp_path / "three")
    assert torch.equal(sets_of(again)[0][0].vectors, sets_of(first)[0][0].vectors + 1)


def test_all_domains_can_share_one_prompt(tiny_bert: Path, tmp_path: Path) -> None:
    first = learnt(tiny_bert, "cs", tmp_path / "one", per_domain=False)
    second = learnt(tmp_path / "one", "bio", tmp_path / "two", per_domain=False)
    assert [len(sets) for sets in sets_of(second)] == [1]
    assert torch.equal(sets_of(second)[0][0].vectors, sets_of(first)[0][0].vectors + 1)
    assert domains_of(load_model(tmp_path / "two")) is None


def test_a_new_prompt_depends_on_seed_and_domain(tiny_bert: Path) -> None:
    def first(**setting: int) -> torch.Tensor:
        model = Prompted(PromptOptions(length=4)).prepare_model(load_model(tiny_bert), Setting(**setting))
        found: torch.Tensor = sets_of(model)[0][0].vectors.detach()
        return found

    assert torch.equal(first(seed=1, number=1), first(seed=1, number=1))
    assert not torch.equal(first(seed=1, number=1), first(seed=1, number=2))
    assert not torch.equal(first(seed=1, number=1), first(seed=2, number=1))
    table = load_model(tiny_bert).get_input_embeddings().weight
    assert all((table == vector).all(1).any() for vector in first(seed=1))


def test_a_new_prompt_starts_from_tokens_of_its_domain(tiny_bert: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00000.arrow", [[5, 6, 7, 8, 9, 10]], 20)
    for length, is_text in ((4, True), (7, False)):  # 7 exceeds the 6 tokens of the text
        method = Prompted(PromptOptions(length=length))
        model: Any = method.prepare_model(load_model(tiny_bert), Setting(texts=(tmp_path,)))
        table, prompt = model.get_input_embeddings().weight, sets_of(model)[0][0]
        assert torch.equal(prompt.vectors, table[5 : 5 + length]) == is_text


def check(folder: Path, training: int = 32, evaluation: int = 32, streaming: bool = False, **options: Any) -> None:
    config = Config(
        corpus=CorpusConfig(streaming=streaming),
        training=TrainingConfig(sequence_length=training),
        evaluation=EvaluationConfig(sequence_length=evaluation),
    )
    Prompted(PromptOptions(**options)).check(config, folder)


def test_models_without_packed_documents_take_no_prompts(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mpnet", "vocab_size": 60, **sizes}))
    with pytest.raises(ModelError, match="prompt needs packed documents, which mpnet models do not support"):
        check(tmp_path)


def write_config(folder: Path, *additions: dict[str, Any]) -> Path:
    config = {"model_type": "bert", "max_position_embeddings": 128, "additions": additions}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_prompts_that_cannot_work_are_refused(tmp_path: Path) -> None:
    made, named = {"kind": "prompts", "sets": 1, "length": 100}, {"kind": "domains", "names": ["cs"]}
    check(write_config(tmp_path), 28, 28)
    check(write_config(tmp_path, made, named), 28, 28)
    check(write_config(tmp_path, made), 28, 28, per_domain=False, streaming=True)
    faults: list[tuple[dict[str, Any], str]] = [
        ({"length": 128}, "prompt.length is 128, but the model takes at most 128 tokens, including the text"),
        (
            {"training": 29},
            "training.sequence_length is 29, but with a prompt of 100 vectors the model takes at most 28 tok",
        ),
        ({"training": 28, "evaluation": 64}, "evaluation.sequence_length is 64, but with a prompt"),
        ({"streaming": True}, "the mean embedding of a domain is measured on prepared text"),
    ]
    for given, words in faults:
        with pytest.raises(AdaptError, match=words):
            check(write_config(tmp_path), **given)
    with pytest.raises(AdaptError, match=r"prompt.length is 8, but .* has prompts that were created with 100"):
        check(write_config(tmp_path, made, named), length=8)
    with pytest.raises(AdaptError, match=r"prompt.per_domain is true, but .* has one set of prompts for all domains"):
        check(write_config(tmp_path, made))
    with pytest.raises(AdaptError, match=r"already has adapters, with which method.kind prompt cannot be combined"):
        check(write_config(tmp_path, {"kind": "adapters"}))


def test_added_passes_and_memory_of_prompts() -> None:
    method = Prompted(PromptOptions(length=50))
    assert method.added_passes() == Added(per_document=50)
    added = method.added_memory(ROBERTA)
    assert added.held == 4 * 50 * 768
    assert added.trained == pytest.approx(50 * 768 / ROBERTA.parameters)


def test_prompts_cost_more_with_more_documents() -> None:
    """Checks the cost of prompts: 50 prompt vectors per document pass through the layers and need memory.

    If the mean length of documents is unknown or above the row length of 200 tokens, it is assumed to be 200.
    """
    added = Added(per_document=50)
    for mean, share in ((None, 50 / 200), (100.0, 50 / 100), (1000.0, 50 / 200)):
        assert workload(ObjectiveConfig(), 200, mean, added).added.trained == pytest.approx(share)
        training, options = TrainingConfig(sequence_length=200), PromptOptions(length=50)
        config = Config(training=training, method=MethodConfig("prompt"), method_options=options)
        assert Demand.of(config, 1, "fp32", False, mean).copies == pytest.approx(1 + share)


def learnt_prefix(folder: Path, domain: str, target: Path, **options: Any) -> Any:
    """Imitates training of a domain's prefixes by adding 1 to the trainable parameters, and saves the model."""
    method = Prefixed(PrefixOptions(length=4, **options))
    model = method.prepare_model(load_model(folder), Setting(domain=domain))
    for parameter in model.parameters():
        parameter.data += parameter.requires_grad
    state = method.merge(model.state_dict())
    save_model(folder, state, load_tokenizer(folder), target, resize=method.resize)
    return model


def test_a_domain_trains_only_its_own_prefixes(tiny_bert: Path, tmp_path: Path) -> None:
    first = learnt_prefix(tiny_bert, "cs", tmp_path / "one")
    second = learnt_prefix(tmp_path / "one", "bio", tmp_path / "two")
    trained = {name for name, each in second.named_parameters() if each.requires_grad}
    parts = [f"bert.encoder.layer.{layer}.attention.self.prefixes.1.{part}" for layer in (0, 1) for part in PARTS]
    assert trained == {*parts}
    before, after = first.state_dict(), load_model(tmp_path / "two").state_dict()
    assert {name for name in after if name not in before} == trained
    assert all(torch.equal(before[name], after[name]) for name in before if name != "bert.domains.vectors")
    known = domains_of(load_model(tmp_path / "two"))
    assert known is not None
    assert known.names == ["cs", "bio"]
    torch.testing.assert_close(logits(load_model(tmp_path / "two", domain="cs")), logits(first))
    # a second training on "cs" starts from the prefix of "cs"
    again = learnt_prefix(tmp_path / "two", "cs", tmp_path / "three")
    assert torch.equal(sets_of(again)[0][0].keys, sets_of(first)[0][0].keys + 1)


PARTS = "keys", "values"


def test_all_domains_can_share_one_set_of_prefixes(tiny_bert: Path, tmp_path: Path) -> None:
    first = learnt_prefix(tiny_bert, "cs", tmp_path / "one", per_domain=False)
    second = learnt_prefix(tmp_path / "one", "bio", tmp_path / "two", per_domain=False)
    assert {len(sets) for sets in sets_of(second)} == {1}
    assert torch.equal(sets_of(second)[1][0].values, sets_of(first)[1][0].values + 1)
    assert domains_of(load_model(tmp_path / "two")) is None


def test_a_new_prefix_depends_on_seed_and_domain(tiny_bert: Path) -> None:
    def first(length: int = 4, **setting: int) -> torch.Tensor:
        model = Prefixed(PrefixOptions(length=length)).prepare_model(load_model(tiny_bert), Setting(**setting))
        found: torch.Tensor = sets_of(model)[0][0].keys.detach()
        return found

    assert torch.equal(first(seed=1, number=1), first(seed=1, number=1))
    assert not torch.equal(first(seed=1, number=1), first(seed=1, number=2))
    assert not torch.equal(first(seed=1, number=1), first(seed=2, number=1))
    # a prefix of 300 vectors is longer than the model's table of positions
    assert first(length=300).abs().sum((1, 2)).min() > 0


def check_prefix(folder: Path, streaming: bool = False, **options: Any) -> None:
    config = Config(corpus=CorpusConfig(streaming=streaming))
    Prefixed(PrefixOptions(**options)).check(config, folder)


def write_prefix_config(folder: Path, *additions: dict[str, Any], model_type: str = "bert") -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "additions": additions}))
    return folder


def test_prefixes_that_cannot_work_are_refused(tmp_path: Path) -> None:
    made, named = {"kind": "prefixes", "sets": 1, "length": 200}, {"kind": "domains", "names": ["cs"]}
    check_prefix(write_prefix_config(tmp_path))
    check_prefix(write_prefix_config(tmp_path, made, named))
    check_prefix(write_prefix_config(tmp_path, made), per_domain=False, streaming=True)
    with pytest.raises(AdaptError, match="the mean embedding of a domain is measured on prepared text"):
        check_prefix(tmp_path, streaming=True)
    with pytest.raises(AdaptError, match=r"prefix.length is 8, but .* has prefixes that were created with 200"):
        check_prefix(write_prefix_config(tmp_path, made, named), length=8)
    with pytest.raises(AdaptError, match=r"prefix.per_domain is true, but .* has one set of prefixes for all domains"):
        check_prefix(write_prefix_config(tmp_path, made))
    with pytest.raises(AdaptError, match=r"already has prompts, with which method.kind prefix cannot be combined"):
        check_prefix(write_prefix_config(tmp_path, {"kind": "prompts"}))
    with pytest.raises(AdaptError, match="the layer names of t5 models are not known"):
        check_prefix(write_prefix_config(tmp_path, model_type="t5"))


def test_added_passes_and_memory_of_prefixes() -> None:
    options = PrefixOptions(length=50)
    method, training = Prefixed(options), TrainingConfig(sequence_length=200)
    assert method.added_passes() == Added(attended=50)
    numbers = 2 * 50 * 12 * 768
    assert method.added_memory(ROBERTA).held == 4 * numbers
    assert method.added_memory(ROBERTA).trained == pytest.approx(numbers / ROBERTA.parameters)
    assert workload(ObjectiveConfig(), 200, 100, method.added_passes()).context == 150
    config = Config(training=training, method=MethodConfig("prefix"), method_options=options)
    assert Demand.of(config, 1, "fp32", False, 60).attended == 120 + 50


def test_a_phase_with_rows_too_long_for_a_prompt_is_refused(tmp_path: Path) -> None:
    phases = [PhaseConfig(fraction=0.5), PhaseConfig(sequence_length=100)]
    training = TrainingConfig(sequence_length=20, phases=phases)
    config = Config(training=training, evaluation=EvaluationConfig(sequence_length=20))
    with pytest.raises(
        AdaptError, match=r"training\.phases, entry 2: sequence_length is 100, but .* at most 28"
    ) as caught:
        check_room(config, write_config(tmp_path), "prompt.length", 100)
    assert caught.value.fix == "set sequence_length to 28 or less, or lower prompt.length"
    check_room(config, write_config(tmp_path), "prompt.length", 28)

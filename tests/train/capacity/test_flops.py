"""Tests our FLOPs formulas against torch's own count of the operations of small models."""

from dataclasses import replace
from math import ceil

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from adapt.config import Config, MethodConfig, ObjectiveConfig, TrainingConfig
from adapt.method.base import Added, Setting
from adapt.method.das.contrast import Contrast
from adapt.method.das.method import DasOptions
from adapt.method.domain_parameters import AdaptersOptions
from adapt.method.hat.method import CptOptions, HatOptions
from adapt.method.lora.method import LoraOptions
from adapt.method.table import method_of
from adapt.model.additions.domain_modules import attach_adapters
from adapt.model.additions.exbert import add_exbert
from adapt.model.additions.masks import attach_plugins
from adapt.model.layers import Gates, ones
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.size import ModelSize, model_size
from adapt.objective.objective import CausalLanguageModelling, Corrupted
from adapt.objective.table import predicted_fraction
from adapt.support.errors import ConfigError
from adapt.train.capacity.flops import (
    Workload,
    forward_flops,
    mean_length,
    training_flops,
    with_flops_as_steps,
    workload,
)
from adapt.train.model_options import checkpoint
from tests.model.architectures import CAUSAL, VOCABULARY, random_model
from tests.train.capacity.test_memory import ROBERTA

pytestmark = pytest.mark.heavy

ROWS, LENGTH = 3, 64
COUNTED = ("bert", "roberta", "distilbert", "electra", "albert", "modernbert", "gpt2", "llama", "qwen3")


@pytest.fixture
def size_of(tmp_path):
    def size(model: torch.nn.Module) -> ModelSize:
        model.save_pretrained(tmp_path)
        found = model_size(tmp_path)
        assert found is not None
        return found

    return size


def rows(predicted: int, documents: int = 1) -> Corrupted:
    """Returns full rows, each with the requested number of documents and of predicted tokens."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=draw)
    positions = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    positions[:, -predicted:] = True
    starts = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    starts[:, :: LENGTH // documents] = True
    return Corrupted(tokens, torch.ones_like(positions), starts, positions, tokens[positions])


def counted(model: torch.nn.Module, corrupted: Corrupted, backward: bool) -> int:
    objective = CausalLanguageModelling()  # all objectives compute their loss in this way
    # Computes attention as matrix products: torch does not count the FLOPs of its fused attention on CPUs.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss = objective.loss(model, corrupted)
        if backward:
            loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("documents", [1, 4])
@pytest.mark.parametrize("name", COUNTED)
def test_training_flops_against_torch(name: str, documents: int, size_of) -> None:
    model = random_model(name).eval()
    keep_documents_apart(model)
    predicted = LENGTH if name in CAUSAL else 10
    size, work = size_of(model), Workload(LENGTH / documents, predicted / LENGTH)
    found = counted(model.train(), rows(predicted, documents), backward=True) / (ROWS * LENGTH)
    assert training_flops(size, work) == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_flops_of_parallel_layers(name: str, size_of) -> None:
    model = random_model(name).eval()
    add_exbert(model, 0.5, VOCABULARY, 0)
    keep_documents_apart(model)
    size, work = size_of(model), Workload(LENGTH, 10 / LENGTH)
    found = counted(model.train(), rows(10), backward=True) / (ROWS * LENGTH)
    assert training_flops(size, work) == pytest.approx(found, rel=0.02)


def with_adapters(model: torch.nn.Module) -> None:
    attach_adapters(model, 3, 16, "sequential", "both", 1.0)


def with_plugins(model: torch.nn.Module) -> None:
    attach_plugins(model, 3, 16, "parallel", 400.0, is_hard=True)


def with_lora(model: torch.nn.Module) -> None:
    method_of(LORA).prepare_model(model, Setting())
    for parameter in model.parameters():
        parameter.requires_grad_(True)  # the expected FLOPs count frozen parameters as if they were trained


LORA = Config(method=MethodConfig("lora"), method_options=LoraOptions(rank=16))
ADDED = [
    (with_adapters, Config(method=MethodConfig("adapters"), method_options=AdaptersOptions(width=16))),
    (with_plugins, Config(method=MethodConfig("cpt"), method_options=CptOptions(width=16))),
    (with_plugins, Config(method=MethodConfig("hat"), method_options=HatOptions(width=16))),
    (with_lora, LORA),
]


@pytest.mark.parametrize(("change", "config"), ADDED, ids=lambda each: getattr(each, "__name__", ""))
def test_flops_of_parts_that_a_method_adds_to_layers(change, config: Config, size_of) -> None:
    """A token passes only through the added parts of one domain, even if the model has parts of earlier domains."""
    model = random_model("bert").eval()
    size = size_of(model)
    change(model)
    keep_documents_apart(model)
    found = counted(model.train(), rows(10), backward=True) / (ROWS * LENGTH)
    trained = method_of(config).trained_size(size, range(1, 4))
    plain = training_flops(size, Workload(LENGTH, 10 / LENGTH))
    assert found > 1.03 * plain
    assert training_flops(trained, Workload(LENGTH, 10 / LENGTH)) == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_flops_with_recomputation(name: str, size_of) -> None:
    model = random_model(name).eval()
    keep_documents_apart(model)
    size, work = size_of(model), Workload(LENGTH, 1.0)
    plain = counted(model.train(), rows(LENGTH), backward=True) / (ROWS * LENGTH)
    checkpoint(model)
    again = counted(model, rows(LENGTH), backward=True) / (ROWS * LENGTH)
    expected = training_flops(size, work, recompute=True) - training_flops(size, work)
    # Recomputation in torch stops as soon as all needed tensors exist, possibly before a layer's last product.
    assert 0.7 * expected < again - plain <= 1.001 * expected


def added_by(config: Config, is_known: bool = True, passes: int = 1) -> Added:
    return method_of(config).added_passes(is_known, passes)


def das(**changes: object) -> Config:
    return Config(method=MethodConfig(kind="das"), method_options=DasOptions(**changes))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("passes", [1, ROWS])
@pytest.mark.parametrize("cost", ["exact", "lean", "economy"])
def test_flops_of_the_passes_of_a_contrast(cost: str, passes: int, known: bool, size_of) -> None:
    """FLOPs match torch's count. Norms, gates and the comparison of views are not counted."""
    model = random_model("bert").eval()
    keep_documents_apart(model)
    # `economy` compares two of three documents, or 8 of 12 documents
    config, predicted = das(contrast_cost=cost, economy_fraction=2 / 3), 10
    contrast = Contrast(config.method_options, *((Gates(model), ones(model)) if known else ()))
    parts = rows(predicted, 1 if passes == 1 else 4).split(ROWS // passes)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        for loss, added, _ in contrast.losses(model.train(), parts):
            (loss + added).backward()
    context = LENGTH if passes == 1 else LENGTH / 4
    work = Workload(context, predicted / LENGTH, method_of(config).added_passes(known, passes))
    assert training_flops(size_of(model), work) == pytest.approx(counter.get_total_flops() / (ROWS * LENGTH), rel=0.02)


def test_flops_that_methods_add() -> None:
    assert added_by(Config()) == Added(0, 0)
    assert added_by(das(contrast_weight=0.0)) == Added(0, 0)
    assert added_by(das(contrast_cost="exact")) == Added(2, 0)
    assert added_by(das(contrast_cost="lean")) == Added(1, 1)
    economy = das(contrast_cost="economy", economy_fraction=0.25)
    assert added_by(economy) == Added(0.25, 0.25)
    assert added_by(economy, is_known=False) == Added(0.25, 0)
    assert added_by(das(contrast_cost="exact"), passes=2) == Added(2, 3)
    assert added_by(das(contrast_cost="lean"), passes=8) == Added(1, 3)
    assert added_by(economy, passes=2) == Added(0.25, 1.5)
    assert added_by(Config(), passes=2) == Added(0, 0)
    size = ModelSize(0, 24, 20, 1, 2, 2, 1, 2, 10, False, "gelu", False, 0.0, 4)
    layers, head = 48 + 64, 20  # these numbers come from the closed form in the test below
    assert training_flops(size, Workload(8, 0.5, Added(0.5, 0.25))) == 3 * (layers + head) + 1.75 * layers
    assert training_flops(size, Workload(8, 0.5, Added(2.0)), recompute=True) == 3 * (layers + head) + (6 + 3) * layers


def test_flops_of_a_small_model_in_closed_form() -> None:
    """The model has one layer with all widths 2 and no bias: 6 matrices of 4 elements, and a head of 10 words."""
    size = ModelSize(0, 24, 20, 1, 2, 2, 1, 2, 10, False, "gelu", False, 0.0, 4)
    assert forward_flops(size, Workload(8, 0.5)) == 2 * 24 + 4 * 2 * 8 + 2 * 20 * 0.5
    assert training_flops(size, Workload(8, 0.5)) == 3 * (48 + 64 + 20)
    assert training_flops(size, Workload(8, 0.5), recompute=True) == 3 * (48 + 64 + 20) + 48 + 64
    assert training_flops(size, Workload(8, 0.5), padding=0.2) == pytest.approx(3 * ((48 + 64) / 0.8 + 20))


def test_the_workload_of_objectives_and_lengths() -> None:
    masked, causal = ObjectiveConfig(mask_fraction=0.3), ObjectiveConfig(kind="causal")
    assert predicted_fraction(masked) == 0.3
    assert predicted_fraction(causal) == predicted_fraction(ObjectiveConfig(kind="causal_detour")) == 1.0
    assert workload(masked, 512) == Workload(512, 0.3)
    assert workload(causal, 512, 90.0) == Workload(90.0, 1.0)
    assert workload(causal, 512, 9000.0) == Workload(512, 1.0)
    assert workload(causal, 512, 90.0, Added(1.0, 1.0)) == Workload(90.0, 1.0, Added(1.0, 1.0))
    assert mean_length({"train_documents": 4, "train_tokens": 10}) == 2.5
    assert mean_length({"train_documents": 0, "train_tokens": 0}) is None


def limited(flops: float, **training: object) -> Config:
    return Config(training=TrainingConfig(max_flops=flops, global_batch_size=4, sequence_length=128, **training))


def test_a_limit_in_closed_form() -> None:
    """Computes a token's FLOPs by hand: six per matrix element, and the two products of attention.

    The elements of the head count only for the predicted 15% of tokens. Documents have 100 tokens on average.
    """
    a_token = 6 * 84_934_656 + 12 * 768 * 100 * 12 + 6 * 39_193_344 * 0.15
    found = with_flops_as_steps(limited(7.5 * 4 * 128 * a_token), ROBERTA, 100.0).training
    assert (found.max_steps, found.max_flops) == (8, None)
    assert with_flops_as_steps(limited(1.0), ROBERTA, 100.0).training.max_steps == 1


def test_the_smaller_of_two_limits_applies() -> None:
    a_step = 4 * 128 * training_flops(ROBERTA, workload(Config().objective, 128))
    assert with_flops_as_steps(limited(10 * a_step, max_steps=7), ROBERTA, None).training.max_steps == 7
    both = with_flops_as_steps(limited(10 * a_step, max_steps=70, max_tokens=99), ROBERTA, None).training
    assert (both.max_steps, both.max_tokens) == (10, 99)


def test_a_model_with_more_tokens_takes_fewer_steps() -> None:
    flops = 1000 * 4 * 128 * training_flops(ROBERTA, workload(Config().objective, 128))
    larger = with_flops_as_steps(limited(flops), ROBERTA.with_tokens(10_000), None).training.max_steps
    ratio = (6 * 84_934_656 + 12 * 768 * 128 * 12 + 6 * (39_193_344 + 7_680_000) * 0.15) / (
        6 * 84_934_656 + 12 * 768 * 128 * 12 + 6 * 39_193_344 * 0.15
    )
    assert larger == ceil(1000 / ratio)


def test_passes_of_a_method_count_and_recomputation_does_not() -> None:
    plain = with_flops_as_steps(limited(1e16), ROBERTA, None).training.max_steps or 0
    das = replace(
        limited(1e16, gradient_checkpointing=True, micro_batch=1),
        method=MethodConfig(kind="das"),
        method_options=DasOptions(contrast_cost="exact"),
    )
    slow = with_flops_as_steps(das, ROBERTA, None).training.max_steps or 0
    assert 2 < plain / slow < 3  # DAS adds two passes through the layers but not through the head
    again = replace(das, training=replace(das.training, gradient_checkpointing=False, micro_batch=4))
    assert with_flops_as_steps(again, ROBERTA, None).training.max_steps == slow


def test_a_configuration_without_max_flops_is_unchanged() -> None:
    config = Config(training=TrainingConfig(max_tokens=7))
    assert with_flops_as_steps(config, None, None) is config


def test_a_model_with_unknown_dimensions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.max_flops is set, but config\.json does not contain"):
        with_flops_as_steps(limited(1e9), None, None)

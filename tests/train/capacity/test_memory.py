"""Tests estimates of memory against the memory that torch and the engine use."""

import re
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
import torch

from adapt.config import Config, MethodConfig, ObjectiveConfig, ResourcesConfig, TrainingConfig
from adapt.method.base import AddedMemory, Method
from adapt.method.collectives import without_others
from adapt.method.das.contrast import Contrast
from adapt.method.das.importance import soft_mask
from adapt.method.das.method import Das, DasOptions
from adapt.model.additions.exbert import add_exbert
from adapt.model.layers import Gates, ones
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.size import ModelSize, model_size
from adapt.objective.objective import CausalLanguageModelling, Corrupted
from adapt.train.capacity.memory import BUCKET, GATHERED, LONG, SCORES, Demand, estimate
from adapt.train.model_options import checkpoint
from tests.model.architectures import CAUSAL, VOCABULARY, random_model
from tests.train.capacity import held

ROBERTA = ModelSize(
    parameters=124_697_433,
    layer_parameters=84_934_656,
    head_parameters=39_193_344,
    layers=12,
    hidden=768,
    attention=768,
    heads=12,
    inner=3072,
    vocabulary=50_265,
    gated=False,
    activation="gelu",
    root_mean_square=False,
    attention_dropout=0.1,
    embedding_parameters=38_603_520,
)
ROWS, LENGTH = 8, 64


def setting(**changes: object) -> Demand:
    base = Demand(
        micro_batch=ROWS,
        sequence_length=LENGTH,
        workers=1,
        zero_stage=0,
        offload="none",
        precision="fp32",
        gradient_checkpointing=False,
        predicted=0.15,
        attended=LENGTH,
        on_gpu=False,
    )
    return replace(base, **changes)


# --- activations


def rows() -> Corrupted:
    tokens = torch.randint(5, VOCABULARY, (ROWS, LENGTH))
    starts = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    starts[:, 0] = True
    positions = torch.zeros_like(starts)
    positions[:, ::7] = True
    return Corrupted(tokens, torch.ones_like(starts), starts, positions, tokens[positions])


def kept(model: torch.nn.Module, precision: str) -> int:
    """Returns the bytes that autograd keeps for the backward pass, without parameters and their casts."""
    shapes = {tuple(parameter.shape) for parameter in model.parameters()}
    return autograd_keeps(model, precision, shapes)


def autograd_keeps(
    model: torch.nn.Module,
    precision: str,
    but: Collection[tuple[int, ...]] = (),
    loss: Callable[[], torch.Tensor] | None = None,
) -> int:
    """Returns the bytes that autograd keeps for the backward pass.

    Does not count parameters, nor tensors whose shape is listed in `but`.
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        is_left_out = tuple(tensor.shape) in but or tuple(reversed(tensor.shape)) in but
        if tensor.untyped_storage().data_ptr() not in parameters and not is_left_out:
            # the tensor is stored, so that its memory is not reused while counting
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
    ):
        loss() if loss else CausalLanguageModelling().loss(model, rows())
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


DROPOUT = {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1}
CASES = [
    ("bert", {}),
    ("bert", DROPOUT),
    ("roberta", DROPOUT),
    ("distilbert", {}),
    ("deberta-v2", DROPOUT),
    ("modernbert", {}),
    ("gpt2", {}),
    ("gpt2", {"attn_pdrop": 0.1, "resid_pdrop": 0.1}),
    ("llama", {}),
    ("qwen3", {}),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "changes"), CASES)
def test_activations_are_what_autograd_keeps(name: str, changes: dict, precision: str, tmp_path) -> None:
    """The estimate counts one layer more than the model has, to cover gradients in the backward pass."""
    model = random_model(name, **changes)
    model.save_pretrained(tmp_path)
    size = model_size(tmp_path)
    keep_documents_apart(model.eval())
    found = kept(model.train(), precision)
    expected = estimate(size, setting(precision=precision)).activations * size.layers / (size.layers + 1)
    assert expected == pytest.approx(found, rel=0.25)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "changes"), [("bert", {}), ("bert", DROPOUT), ("modernbert", {})])
def test_activations_of_parallel_layers_are_what_autograd_keeps(
    name: str, changes: dict, precision: str, tmp_path
) -> None:
    model = random_model(name, **changes)
    add_exbert(model.eval(), 0.5, VOCABULARY, 0)
    model.save_pretrained(tmp_path)
    size = model_size(tmp_path)
    keep_documents_apart(model)
    found = kept(model.train(), precision)
    expected = estimate(size, setting(precision=precision)).activations * size.layers / (size.layers + 1)
    assert expected == pytest.approx(found, rel=0.25)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_checkpointing_keeps_one_hidden_state_per_layer(name: str, tmp_path) -> None:
    model = random_model(name)
    model.save_pretrained(tmp_path)
    size = model_size(tmp_path)
    keep_documents_apart(model.eval())
    checkpoint(model.train())
    found = kept(model, "fp32")
    tokens = ROWS * LENGTH
    assert found >= tokens * 4 * size.hidden * size.layers
    one_layer = estimate(size, setting(gradient_checkpointing=True)).activations
    assert found < one_layer < estimate(size, setting()).activations


# --- weights, gradients, optimizer


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("zero_stage", range(4))
def test_the_engines_memory_matches_the_estimate(ranks, zero_stage: int, world: int) -> None:
    group = ranks(world)
    found, bucket = group.run(held.most_held, zero_stage)[0]
    parameters = sum(parameter.numel() for parameter in held.model().parameters())
    size = replace(ROBERTA, parameters=parameters)
    memory = estimate(size, setting(zero_stage=zero_stage, workers=world, on_gpu=True))
    states = memory.parameters + memory.gradients + memory.optimizer
    gathered = 4 * parameters if zero_stage == 3 else 0
    assert bucket == (4 * BUCKET if zero_stage else 0)
    assert memory.buffers == bucket + gathered
    if zero_stage < 3:
        assert states == pytest.approx(found, rel=0.03)
    else:  # DeepSpeed may gather all parameters, but seldom holds all of them at once
        assert 0.97 * states < found < 1.03 * (states + gathered)


def test_weights_gradients_and_optimizer_in_closed_form() -> None:
    """Compares the estimate with bytes per parameter: weight 4, gradient 4, AdamW 8.

    ZeRO adds a copy of 4 bytes, and divides the sharded parts by the number of workers.
    """
    one = 1000.0
    size = replace(ROBERTA, parameters=1000)
    expected = {
        0: (4 * one, 4 * one, 8 * one),
        1: (4 * one, 4 * one, 12 * one / 4),
        2: (4 * one, 4 * one / 4, 12 * one / 4),
        3: (4 * one / 4, 4 * one / 4, 12 * one / 4),
    }
    for stage, values in expected.items():
        memory = estimate(size, setting(zero_stage=stage, workers=4))
        assert (memory.parameters, memory.gradients, memory.optimizer) == values
        assert memory.host == 0


@pytest.mark.parametrize(("stage", "offload"), [(2, "optimizer"), (3, "optimizer"), (3, "all")])
def test_offload_moves_bytes_to_the_host(stage: int, offload: str) -> None:
    stays = estimate(ROBERTA, setting(zero_stage=stage, workers=4, on_gpu=True))
    goes = estimate(ROBERTA, setting(zero_stage=stage, workers=4, on_gpu=True, offload=offload))
    assert goes.total + goes.host == pytest.approx(stays.total)
    assert goes.host == stays.optimizer + stays.gradients + (stays.parameters if offload == "all" else 0)


def test_the_estimate_against_deepspeeds_own() -> None:
    """Different assumptions explain the difference from DeepSpeed's own estimate.

    DeepSpeed assumes 2 bytes per weight where we assume 4, and 16-bit gradients in addition to fp32 gradients.
    """
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    workers, number = 4, ROBERTA.parameters
    _, second = estimate_zero2_model_states_mem_needs(number, num_gpus_per_node=workers, cpu_offload=False)
    _, third, _ = estimate_zero3_model_states_mem_needs(
        number, 0, num_gpus_per_node=workers, cpu_offload=False, cpu_offload_params=False
    )
    for stage, theirs, more in ((2, second, 2 * number - 2 * number / workers), (3, third, 2 * number / workers)):
        ours = estimate(ROBERTA, setting(zero_stage=stage, workers=workers))
        assert ours.parameters + ours.gradients + ours.optimizer == pytest.approx(theirs + more, abs=4)


# --- casts, loss, buffers and other parts


def test_memory_of_casts_loss_and_buffers() -> None:
    assert estimate(ROBERTA, setting()).casts == 0
    assert estimate(ROBERTA, setting(precision="bf16")).casts == 2 * (84_934_656 + 39_193_344)
    few, many = (estimate(ROBERTA, setting(predicted=share)) for share in (0.15, 1.0))
    assert many.loss > few.loss
    gradient = 8 * ROBERTA.head_parameters
    assert few.loss == pytest.approx(2 * 4 * 77 * ROBERTA.vocabulary + gradient)
    huge = estimate(ROBERTA, setting(micro_batch=10_000, predicted=1.0))
    assert huge.loss == 2 * SCORES + gradient
    assert estimate(ROBERTA, setting(zero_stage=1)).buffers == 4 * BUCKET
    small = replace(ROBERTA, parameters=BUCKET // 2)
    # memory pages that are never written take no memory
    assert estimate(small, setting(zero_stage=1)).buffers == 2 * BUCKET
    large = replace(ROBERTA, parameters=2 * GATHERED)
    assert estimate(large, setting(zero_stage=3)).buffers == 4 * (BUCKET + GATHERED)


def test_a_demand_is_read_from_a_configuration() -> None:
    config = Config(
        objective=ObjectiveConfig(kind="causal"),
        training=TrainingConfig(sequence_length=512, gradient_checkpointing=True),
        resources=ResourcesConfig(workers=4, zero_stage=2, offload="optimizer"),
    )
    found = Demand.of(config, 16, "bf16", True, document_length=100.0)
    expected = Demand(16, 512, 4, 2, "optimizer", "bf16", True, 1.0, 200.0, True)
    assert found == replace(expected, method=found.method, training=config.training)
    assert Demand.of(config, 16, "auto", True).precision == "fp32"
    assert Demand.of(config, 16, "auto", True).attended == 512
    assert Demand.of(config, 16, "auto", True, 300.0).attended == 512


@pytest.mark.parametrize(("cost", "copies"), [("exact", 3), ("lean", 2), ("economy", 1.2)])
def test_views_of_rows_count_as_additional_rows(cost: str, copies: float) -> None:
    """Activations are multiplied by the number of copies of the rows. The cost `exact` adds the values of its gates."""
    plain = Demand.of(Config(), 16, "bf16", True)
    das = DasOptions(contrast_cost=cost, soft_mask="gradient")  # a mask of gradients holds no memory
    compared = Demand.of(Config(method=MethodConfig("das"), method_options=das), 16, "bf16", True)
    assert compared == replace(plain, copies=copies, method=compared.method)
    values = ROBERTA.heads + ROBERTA.inner + ROBERTA.hidden
    assert compared.method.added_memory(ROBERTA) == AddedMemory(layer_values=values * (cost == "exact"))
    one, several = estimate(ROBERTA, plain), estimate(ROBERTA, replace(compared, method=Method()))
    assert several == replace(one, activations=copies * one.activations)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize(("cost", "copies"), [("exact", 3), ("lean", 2)])
def test_views_are_what_autograd_keeps(cost: str, copies: float, name: str, tmp_path) -> None:
    model = random_model(name)
    model.save_pretrained(tmp_path)
    keep_documents_apart(model.eval())
    importance = {kind: 0.5 * each for kind, each in ones(model).items()}
    contrast = Contrast(DasOptions(contrast_cost=cost), Gates(model.train()), importance)

    def loss() -> torch.Tensor:
        with without_others():
            total, added, _ = next(contrast.losses(model, [rows()]))
        return total + added

    shapes = {tuple(parameter.shape) for parameter in model.parameters()}
    found, size = autograd_keeps(model, "fp32", shapes, loss), model_size(tmp_path)
    views = setting(copies=copies, method=Das(DasOptions(contrast_cost=cost, soft_mask="none")))
    assert estimate(size, views).activations * size.layers / (size.layers + 1) == pytest.approx(found, rel=0.07)


@pytest.mark.parametrize(
    ("changes", "layers", "embeddings"),
    [
        ({}, True, False),
        ({"embeddings": "frequency"}, True, True),
        ({"soft_mask": "gradient", "embeddings": "frequency"}, False, False),
        ({"soft_mask": "none", "embeddings": "frequency"}, False, False),
    ],
)
def test_the_memory_of_masks_depends_on_the_configuration(changes: dict, layers: bool, embeddings: bool) -> None:
    found = Das(DasOptions(contrast_weight=0.0, **changes)).added_memory(ROBERTA, shared_by=4)
    kept = 4.0 * layers * ROBERTA.layer_parameters
    assert found == AddedMemory(kept + 4.0 * embeddings * ROBERTA.head_parameters, kept)


MASKED = ["bert", "gpt2", "distilbert"]


def with_masks(name: str, embeddings: bool) -> tuple[torch.nn.Module, int]:
    """Returns a model with masks, and the number of bytes of the masks."""
    model = random_model(name).eval()
    keep_documents_apart(model)
    importance = {kind: 0.5 * each for kind, each in ones(model).items()}
    rows = torch.full((VOCABULARY,), 0.5) if embeddings else None
    soft_mask(model, importance, embedding=rows)
    buffers = {buffer.data_ptr(): buffer.nbytes for key, buffer in model.named_buffers() if "_mask." in key}
    return model.train(), sum(buffers.values())


@pytest.mark.parametrize("embeddings", [False, True])
@pytest.mark.parametrize("name", MASKED)
def test_memory_of_masks_and_of_their_results(name: str, embeddings: bool, tmp_path) -> None:
    """Masks need the same memory at every ZeRO stage. In fp32, masked copies of parameters are estimated like casts."""
    random_model(name).save_pretrained(tmp_path)
    size = model_size(tmp_path)
    model, held = with_masks(name, embeddings)
    options = DasOptions(contrast_weight=0.0, embeddings="frequency" if embeddings else "free")
    masked = {"method": Das(options)}
    for stage in (0, 3):
        memory = estimate(size, setting(**masked, zero_stage=stage, workers=4))
        assert memory.method == pytest.approx(held, rel=0.1)
    plain = random_model(name).eval()
    keep_documents_apart(plain)
    beside = autograd_keeps(model, "fp32") - autograd_keeps(plain.train(), "fp32")
    assert memory.casts == pytest.approx(beside, rel=0.1)
    assert replace(memory, method=0.0, casts=0.0) == estimate(size, setting(zero_stage=3, workers=4))
    narrow = estimate(size, setting(precision="bf16"))
    assert estimate(size, setting(precision="bf16", **masked)) == replace(narrow, method=memory.method)


def test_constants_match_those_of_the_model_code() -> None:
    """The constants are defined twice, because importing the model code would load torch."""
    from adapt.model import linear_losses
    from adapt.model.packing import attention

    assert (LONG, SCORES) == (attention.LONG, linear_losses.PIECE_BYTES)


def test_frozen_parameters_need_no_gradients_and_no_optimizer_state(tmp_path) -> None:
    model = random_model("bert")
    model.save_pretrained(tmp_path)
    size = model_size(tmp_path)
    whole = estimate(size, setting())
    freezing = estimate(size, setting(training=TrainingConfig(freeze=["embeddings", "layers:1"])))
    named = dict(model.named_parameters())
    frozen = sum(p.numel() for name, p in named.items() if "_embeddings." in name or ".layer.0." in name)
    assert freezing.parameters == whole.parameters
    assert whole.optimizer - freezing.optimizer == pytest.approx(8 * frozen, rel=0.02)
    assert whole.gradients - freezing.gradients == pytest.approx(4 * frozen, rel=0.02)


def test_the_total_is_the_sum_of_the_parts() -> None:
    memory = estimate(ROBERTA, setting(zero_stage=2, on_gpu=True, offload="optimizer"))
    assert sum(memory.parts().values()) == memory.total
    assert not any(re.search("host", name) for name in memory.parts())
    assert set(CAUSAL) <= {name for name, _ in CASES}

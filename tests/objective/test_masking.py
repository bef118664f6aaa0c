"""Tests masking: which tokens are predicted, what the model sees at their positions, and the loss."""

from collections import Counter
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from adapt.config import ObjectiveConfig
from adapt.corpus.corpora import Form
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import (
    DifferenceMasking,
    MaskedLanguageModelling,
    at_least_one,
    heads_of,
    make,
    take_units,
    uniform,
    unit_lengths,
)
from adapt.objective.objective import Batch, Corrupted
from adapt.objective.table import OBJECTIVES
from adapt.objective.word_weights import Counts, WordWeights
from tests.objective.rows import packed, wrapped
from tests.samples import sentences
from tests.tokenizers import wordpiece

MASK = 4
SPECIAL = range(5)


@pytest.fixture(scope="module")
def tokenizer(tiny_bert: Path) -> PreTrainedTokenizerFast:
    return load_tokenizer(tiny_bert)


@pytest.fixture(scope="module")
def model(tiny_bert: Path) -> PreTrainedModel:
    return load_model(tiny_bert)


@pytest.fixture(scope="module")
def objective(tokenizer: PreTrainedTokenizerFast) -> MaskedLanguageModelling:
    return MaskedLanguageModelling(ObjectiveConfig(), tokenizer, seed=0)


def batch_of(rows: list[list[int]], numbers: list[int] | None = None, epoch: int = 0, length: int = 0) -> Batch:
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), length or int(lengths.max()), dtype=torch.int64)
    for filled, row in zip(tokens, rows, strict=True):
        filled[: len(row)] = torch.tensor(row)
    starts = (torch.arange(tokens.shape[1]) == 0).expand_as(tokens)
    return Batch(tokens, lengths, torch.full_like(lengths, epoch), torch.tensor(numbers or range(len(rows))), starts)


def random_rows(count: int, shortest: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Returns random rows in which about one token in eight is special, as in packed rows."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(shortest, longest + 1, count)
    return [
        np.where(draw.random(n) < 0.125, draw.integers(0, 5, n), draw.integers(5, 154, n)).tolist() for n in lengths
    ]


@settings(max_examples=50)
@given(st.integers(0, 1000), st.sampled_from([0.15, 0.3, 0.4, 0.01, 0.99]))
def test_the_number_of_predictions_is_exact(tokenizer: PreTrainedTokenizerFast, number: int, fraction: float) -> None:
    objective = MaskedLanguageModelling(ObjectiveConfig(mask_fraction=fraction), tokenizer, seed=number)
    rows = random_rows(20, 1, 60, seed=number)
    batch = batch_of(rows)
    corrupted = objective.corrupt(batch)
    for row, predicted in zip(rows, corrupted.positions, strict=True):
        ordinary = [token not in SPECIAL for token in row]
        assert int(predicted.sum()) == max(1, round(fraction * sum(ordinary)))
        if any(ordinary):
            assert all(ordinary[place] for place in predicted.nonzero().flatten().tolist())
        assert not predicted[len(row) :].any()


def test_ties_are_rounded_as_python_does(objective: MaskedLanguageModelling) -> None:
    """Checks lengths at which fp32 would give another number of predictions: it would round 0.15 x 190 = 28.5 up."""
    for ordinary in (10, 30, 190, 350, 390, 510):
        corrupted = objective.corrupt(batch_of([[7] * ordinary]))
        assert int(corrupted.positions.sum()) == round(0.15 * ordinary)


def test_inputs_and_targets(objective: MaskedLanguageModelling) -> None:
    rows = random_rows(200, 5, 80)
    batch = batch_of(rows)
    corrupted = objective.corrupt(batch)
    assert torch.equal(corrupted.targets, batch.tokens[corrupted.positions])
    untouched = ~corrupted.positions
    assert torch.equal(corrupted.input_ids[untouched], batch.tokens[untouched])
    assert torch.equal(corrupted.real, batch.real)
    assert torch.equal(corrupted.starts, batch.starts)


def test_shares_of_masked_random_and_unchanged_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    objective = MaskedLanguageModelling(ObjectiveConfig(), tokenizer, seed=1)
    # 149 different tokens, so that random replacements rarely equal the original
    rows = [[token] * 100 for token in range(5, 154)] * 4
    corrupted = objective.corrupt(batch_of(rows))
    shown, targets = corrupted.input_ids[corrupted.positions], corrupted.targets
    n = len(targets)
    assert n == 15 * len(rows)
    is_mask, is_kept = shown == MASK, shown == targets

    def close(count: int, share: float) -> bool:
        return abs(count - share * n) <= 4 * sqrt(n * share * (1 - share))

    assert close(int(is_mask.sum()), 0.8)
    # one of 149 random replacements equals the original
    assert close(int(is_kept.sum()), 0.1 + 0.1 / 149)
    drawn = Counter(shown[~is_mask & ~is_kept].tolist())
    assert not drawn.keys() & set(SPECIAL)
    expected = 0.1 * n / 149
    assert len(drawn) == 149
    assert all(abs(count - expected) < 6 * sqrt(expected) for count in drawn.values())


def test_each_position_is_equally_likely_to_be_predicted(objective: MaskedLanguageModelling) -> None:
    rows = [[2, *range(20, 60), 3]] * 4000
    chosen = objective.corrupt(batch_of(rows)).positions.sum(0)
    assert chosen[[0, -1]].tolist() == [0, 0]
    expected = 4000 * 6 / 40
    assert (chosen[1:-1] - expected).abs().max() < 4.5 * sqrt(expected)


def test_positions_and_replacements_are_drawn_independently(objective: MaskedLanguageModelling) -> None:
    """Checks that each predicted position is masked in 80% of cases.

    If the same random number chose the positions and the replacements, the positions with the smallest numbers would
    always be masked.
    """
    rows = [list(range(20, 60))] * 3000
    corrupted = objective.corrupt(batch_of(rows))
    masked = (corrupted.input_ids == MASK).sum(0) / corrupted.positions.sum(0)
    assert (masked - 0.8).abs().max() < 4.5 * sqrt(0.8 * 0.2 / 400)


def same(left: Corrupted, right: Corrupted, places: list[int], length: int) -> None:
    """Checks that the rows of `left` equal the rows `places` of `right`, both truncated to `length` tokens."""
    for name in ("input_ids", "positions", "real"):
        assert torch.equal(getattr(left, name)[:, :length], getattr(right, name)[places][:, :length])


def test_a_rows_masks_do_not_depend_on_its_batch(objective: MaskedLanguageModelling) -> None:
    rows = random_rows(12, 10, 40)
    numbers = [3, 10**12, 7, 0, 1, 99, 5, 12, 13, 14, 15, 16]
    whole = objective.corrupt(batch_of(rows, numbers))
    for place, (row, number) in enumerate(zip(rows, numbers, strict=True)):
        same(objective.corrupt(batch_of([row], [number])), whole, [place], len(row))
    same(objective.corrupt(batch_of(rows, numbers, length=100)), whole, list(range(12)), whole.input_ids.shape[1])
    back = list(range(11, -1, -1))
    same(objective.corrupt(batch_of(rows[::-1], numbers[::-1])), whole, back, whole.input_ids.shape[1])
    again = objective.corrupt(batch_of(rows, numbers))
    same(again, whole, list(range(12)), whole.input_ids.shape[1])


def test_seed_epoch_and_row_each_change_the_masks(
    objective: MaskedLanguageModelling, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [list(range(20, 120))]
    other_seed = MaskedLanguageModelling(ObjectiveConfig(), tokenizer, seed=1)
    drawn = [
        objective.corrupt(batch_of(rows, [0])),
        objective.corrupt(batch_of(rows, [1])),
        objective.corrupt(batch_of(rows, [0], epoch=1)),
        objective.corrupt(batch_of(rows, [1], epoch=1)),
        other_seed.corrupt(batch_of(rows, [0])),
    ]
    assert len({tuple(corrupted.positions[0].tolist()) for corrupted in drawn}) == 5


@pytest.mark.parametrize("row", [[2], [2, 3], [1] * 30, [4, 4, 2, 3, 0]])
def test_a_row_of_special_tokens_still_has_a_target(objective: MaskedLanguageModelling, row: list[int]) -> None:
    """Checks that a row of special tokens gets a prediction, because the mean loss over no predictions is undefined."""
    batch = batch_of([row, list(range(20, 40))])
    corrupted = objective.corrupt(batch)
    assert int(corrupted.positions[0].sum()) == max(1, round(0.15 * len(row)))
    assert not corrupted.positions[0, len(row) :].any()
    assert len(corrupted.targets) == int(corrupted.positions.sum())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100])
def test_split_keeps_everything(objective: MaskedLanguageModelling, size: int) -> None:
    corrupted = objective.corrupt(batch_of(random_rows(7, 1, 50)))
    assert all(part.rows is None for part in corrupted.split(size))
    corrupted = replace(corrupted, rows=torch.arange(7) + 30).bound_for(torch.device("meta"))
    parts = corrupted.split(size)
    assert all(part.device == corrupted.device for part in parts)
    assert [len(part.input_ids) for part in parts] == [min(size, 7 - start) for start in range(0, 7, size)]
    for name in ("input_ids", "real", "starts", "positions", "targets", "rows"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(corrupted, name))
    for part in parts:
        assert len(part.targets) == int(part.positions.sum())


def test_losses_are_cross_entropy_on_all_logits(objective: MaskedLanguageModelling, model: PreTrainedModel) -> None:
    corrupted = objective.corrupt(batch_of(random_rows(6, 3, 50)))
    with torch.no_grad():
        losses = objective.losses(model, corrupted)
        logits = model(input_ids=corrupted.input_ids, attention_mask=corrupted.real.long()).logits
    scores = logits[corrupted.positions].double()
    expected = scores.logsumexp(1) - scores[torch.arange(len(scores)), corrupted.targets]
    assert losses.dtype == torch.float32
    assert losses.shape == corrupted.targets.shape
    assert torch.allclose(losses.double(), expected, atol=1e-5)
    assert losses.std() > 0.1  # the losses differ, so the comparison above also checks their order


def test_splitting_a_step_does_not_change_its_loss_and_gradient(
    objective: MaskedLanguageModelling, tiny_bert: Path
) -> None:
    """Checks a step's loss and gradient on rows of unequal length, where a mean of the parts' means would be wrong."""
    model = load_model(tiny_bert)
    corrupted = objective.corrupt(batch_of(random_rows(12, 1, 60)))
    count = len(corrupted.targets)

    def step(parts: list[Corrupted]) -> tuple[float, torch.Tensor]:
        model.zero_grad()
        total = 0.0
        for part in parts:
            loss = objective.loss(model, part) / count
            loss.backward()
            total += float(loss)
        return total, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    loss, gradient = step([corrupted])
    assert gradient.norm() > 0.01
    for size in (1, 2, 5):
        other_loss, other_gradient = step(corrupted.split(size))
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert torch.allclose(other_gradient, gradient, atol=1e-5)
    means = [float(objective.losses(model, part).mean()) for part in corrupted.split(1)]
    assert abs(np.mean(means) - loss) > 1e-3


def test_a_batch_is_made_from_the_corpus_columns() -> None:
    columns = {
        "tokens": np.array([[5, 65_535], [6, 0]], np.uint16),
        "lengths": np.array([2, 1], np.int32),
        "epochs": np.array([0, 1]),
        "rows": np.array([10**12, 0]),
        "starts": np.array([[True, False], [True, False]]),
        "word_starts": np.array([[True, True], [True, False]]),
    }
    for column in columns.values():
        column.flags.writeable = False  # arrays from Ray are read-only
    batch = Batch.of(columns)
    assert {batch.tokens.dtype, batch.lengths.dtype, batch.epochs.dtype, batch.rows.dtype} == {torch.int64}
    assert batch.starts.tolist() == [[True, False], [True, False]]
    assert batch.marks.keys() == {"word_starts"}
    assert batch.marks["word_starts"].tolist() == [[True, True], [True, False]]
    assert batch.tokens.tolist() == [[5, 65_535], [6, 0]]
    assert batch.rows.tolist() == [10**12, 0]
    assert batch.real.tolist() == [[True, True], [True, False]]


def test_added_special_tokens_are_not_predicted(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    # makes the ordinary word "data" a special token
    tokenizer.add_special_tokens({"additional_special_tokens": ["data"]})
    data = tokenizer.convert_tokens_to_ids("data")
    monkeypatch.setattr("adapt.objective.masking.MASKED", 0.0)
    monkeypatch.setattr("adapt.objective.masking.RANDOM", 1.0)
    corrupted = MaskedLanguageModelling(ObjectiveConfig(), tokenizer, 0).corrupt(batch_of([[data, 20, 21] * 30] * 50))
    assert data not in corrupted.targets.tolist()
    assert data not in corrupted.input_ids[corrupted.positions].tolist()


shapes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=12)


def row_of(units: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a row's unit starts and eligible tokens, given the number of tokens and eligible tokens of each unit."""
    starts = [place == 0 for tokens, _ in units for place in range(tokens)]
    eligible = [place < count for tokens, count in units for place in range(tokens)]
    return torch.tensor([starts]), torch.tensor([eligible])


@given(shapes)
def test_heads_and_lengths_of_units(units: list[tuple[int, int]]) -> None:
    starts, eligible = row_of(units)
    heads = heads_of(starts)
    size = unit_lengths(heads, eligible)
    place = 0
    for tokens, count in units:
        assert heads[0, place : place + tokens].tolist() == [place] * tokens
        assert size[0, place : place + tokens].tolist() == [min(count, tokens)] + [0] * (tokens - 1)
        place += tokens


def by_hand(order: list[float], size: list[int], budget: float, crossing: float) -> list[bool]:
    taken = [False] * len(size)
    left = budget
    for _, place in sorted((number, place) for place, number in enumerate(order) if size[place]):
        if left <= 0:
            break
        taken[place] = size[place] <= left or crossing < left / size[place]
        left -= size[place]
    return taken


@given(shapes, st.floats(0, 1), st.integers(0, 99))
def test_taken_units_equal_those_by_hand(units: list[tuple[int, int]], share: float, seed: int) -> None:
    starts, eligible = row_of(units)
    size = unit_lengths(heads_of(starts), eligible)
    budget = share * float(eligible.sum())
    order = uniform(seed, 0, torch.tensor([0]), torch.tensor([0]), eligible.shape[1])
    crossing = uniform(seed, 1, torch.tensor([0]), torch.tensor([0]), 1)[:, 0]
    taken = take_units(order, size, torch.tensor([budget], dtype=torch.float64), crossing)
    assert taken[0].tolist() == by_hand(order[0].tolist(), size[0].tolist(), budget, float(crossing))


def test_the_expected_number_of_tokens_is_the_budget() -> None:
    rows, budget = 40_000, 7.3
    size = torch.tensor([3, 1, 6, 2, 0, 9, 1, 1, 4, 5]).expand(rows, -1)
    numbers = torch.arange(rows)
    order = uniform(3, 0, torch.zeros_like(numbers), numbers, size.shape[1])
    crossing = uniform(3, 1, torch.zeros_like(numbers), numbers, 1)[:, 0]
    counts = (
        (take_units(order, size, torch.full((rows,), budget, dtype=torch.float64), crossing) * size).sum(1).double()
    )
    assert abs(float(counts.mean()) - budget) < 4 * float(counts.std()) / sqrt(rows)
    assert counts.max() < budget + 9


def test_at_least_one_takes_the_first_unit_where_none_is_taken() -> None:
    order = torch.tensor([[0.1, 0.5, 0.3], [0.1, 0.5, 0.3]], dtype=torch.float64)
    size = torch.tensor([[0, 2, 1], [1, 1, 1]])
    taken = torch.tensor([[False, False, False], [False, True, False]])
    assert at_least_one(taken, order, size).tolist() == [[False, False, True], [False, True, False]]


GOLDEN, LOW_64_BITS = 0x9E3779B97F4A7C15, 2**64 - 1
INT64 = st.integers(-(2**63), 2**63 - 1)


def mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & LOW_64_BITS
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & LOW_64_BITS
    return value ^ (value >> 31)


def reference(seed: int, stream: int, epoch: int, row: int, position: int) -> float:
    """Computes one expected number with Python integers.

    Each row has its own SplitMix64 generator, which is seeded by the seed, stream, epoch and row.
    """
    state = (seed + stream * GOLDEN) & LOW_64_BITS
    for number in (epoch, row):
        state = (mix(state) + number * GOLDEN) & LOW_64_BITS
    state = (mix(state) + (position + 1) * GOLDEN) & LOW_64_BITS
    return (mix(state) >> 11) / 2**53


def draw(seed: int, stream: int, epochs: list[int], rows: list[int], length: int) -> np.ndarray:
    return uniform(seed, stream, torch.tensor(epochs), torch.tensor(rows), length).numpy()


def test_the_reference_is_splitmix64() -> None:
    """Compares the test's reference with the first three numbers of Vigna's implementation of SplitMix64 for seed 0."""
    assert [mix(n * GOLDEN & LOW_64_BITS) for n in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@given(
    st.integers(-(2**70), 2**70),
    st.integers(0, 5),
    st.lists(st.tuples(INT64, INT64), min_size=1, max_size=4),
    st.integers(1, 20),
)
def test_uniform_equals_the_reference(seed: int, stream: int, addresses: list[tuple[int, int]], length: int) -> None:
    epochs, rows = ([pair[i] for pair in addresses] for i in (0, 1))
    expected = [[reference(seed, stream, *pair, position) for position in range(length)] for pair in addresses]
    values = draw(seed, stream, epochs, rows, length)
    assert values.dtype == np.float64
    assert values.tolist() == expected


def test_uniform_does_not_depend_on_other_rows_or_length() -> None:
    epochs, rows = [0, 3, 0, 7, 3], [5, 5, 10**12, 0, 6]
    together = draw(1, 2, epochs, rows, 100)
    for place, (epoch, row) in enumerate(zip(epochs, rows, strict=True)):
        assert np.array_equal(draw(1, 2, [epoch], [row], 100)[0], together[place])
        assert np.array_equal(draw(1, 2, [9, epoch], [9, row], 17)[1], together[place, :17])


def test_every_part_of_the_address_changes_the_numbers() -> None:
    base = (0, 0, 0, 0)
    addresses = {base} | {tuple(step if i == j else 0 for j in range(4)) for i in range(4) for step in (1, 2, 1000)}
    drawn = [draw(seed, stream, [epoch], [row], 8) for seed, stream, epoch, row in sorted(addresses)]
    assert len({values.tobytes() for values in drawn}) == 13
    assert not np.array_equal(draw(0, 0, [1], [2], 8), draw(0, 0, [2], [1], 8))
    assert len(set(np.concatenate(drawn).ravel().tolist())) == 13 * 8


N = 20_000
DIRECTIONS = {
    "positions": lambda: draw(3, 0, [1], [4], N)[0],
    "rows": lambda: draw(3, 0, [1] * N, list(range(N)), 3)[:, 2],
    "far rows": lambda: draw(3, 0, [1] * N, [row * 2**20 for row in range(N)], 1)[:, 0],
    "epochs": lambda: draw(3, 0, list(range(N)), [4] * N, 3)[:, 2],
    "seeds": lambda: np.array([draw(seed, 0, [1], [4], 1)[0, 0] for seed in range(2000)]),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_numbers_are_uniform_in_every_direction(direction: str) -> None:
    values = DIRECTIONS[direction]()
    assert values.min() >= 0
    assert values.max() < 1
    assert kstest(values, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 4 / np.sqrt(len(values))


def test_streams_are_uncorrelated() -> None:
    values = np.array([draw(3, stream, [0] * 100, list(range(100)), 200).ravel() for stream in range(3)])
    assert np.abs(np.corrcoef(values) - np.eye(3)).max() < 4 / np.sqrt(N)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_uniform_is_the_same_on_a_gpu() -> None:
    epochs, rows = torch.arange(50) % 3, torch.arange(50) * 10**9
    assert torch.equal(uniform(7, 1, epochs.cuda(), rows.cuda(), 64).cpu(), uniform(7, 1, epochs, rows, 64))


def corrupted(kind: str) -> Corrupted:
    tokenizer = wordpiece()
    texts = sentences(40, seed=9)
    batch = packed(tokenizer, texts, 64, [[(0, len(text.split()[0]))] for text in texts])
    objective = make(ObjectiveConfig(kind=kind), wrapped(tokenizer), 0)
    if isinstance(objective, DifferenceMasking):
        objective.weights = WordWeights.of(Counts.empty(), Counts.empty())
    return objective.corrupt(batch)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_an_objectives_columns_are_those_that_are_prepared(kind: str) -> None:
    config = ObjectiveConfig(kind=kind)
    assert make(config, wrapped(wordpiece()), 0).columns() == Form.of(config).marks


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_every_kind_has_targets_in_each_row(kind: str) -> None:
    made = corrupted(kind)
    assert made.positions.any(1).all()
    assert not (made.positions & ~made.real).any()
    assert len(made.targets) == int(made.positions.sum())


class Gapped:
    """Imitates a tokenizer of 50 tokens whose last token has the id 60."""

    mask_token_id = MASK
    all_special_ids = SPECIAL

    def __len__(self) -> int:
        return 50

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in (*range(49), 60)}


def test_ids_of_a_tokenizer_may_have_gaps() -> None:
    objective = MaskedLanguageModelling(ObjectiveConfig(mask_fraction=0.5), Gapped(), seed=0)  # type: ignore[arg-type]
    corrupted = objective.corrupt(batch_of([[2, 60, 60, 10, 11, 3]]))
    assert corrupted.positions.tolist()[0][0::5] == [False, False]
    assert len(corrupted.targets) == 2

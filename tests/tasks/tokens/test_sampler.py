"""The sampler: rows and batches of an epoch, and the probability of each task."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest
from scipy.stats import chisquare

from tasks.common.errors import UserError
from tasks.tokens.batch_stream import blocks_of, cut_by_tokens
from tasks.tokens.sampler import BatchIndices, Mixing, TaskSampler, shard_indices

MIXINGS = get_args(Mixing)
SIZES = {"big": 1000, "middle": 130, "small": 33}


def make_lengths(sizes: dict[str, int] = SIZES) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {task: random.integers(3, 90, n) for task, n in sizes.items()}


def draw_counts(draws: list[BatchIndices]) -> dict[str, Counter[int]]:
    """task -> how often each row was drawn."""
    rows: dict[str, Counter[int]] = {}
    for draw in draws:
        rows.setdefault(draw.task, Counter()).update(draw.indices.tolist())
    return rows


def equal_draws(left: list[BatchIndices], right: list[BatchIndices]) -> bool:
    return [(d.task, d.indices.tolist()) for d in left] == [(d.task, d.indices.tolist()) for d in right]


def test_mixing_all_draws_every_row_once_and_shuffles_the_batches() -> None:
    sampler = TaskSampler(make_lengths(), 16, seed=3)
    draws = sampler.epoch(0)
    assert draw_counts(draws) == {task: Counter(range(n)) for task, n in SIZES.items()}
    assert len(draws) == len(sampler) == 63 + 9 + 3
    sizes = Counter((draw.task, len(draw.indices)) for draw in draws)
    assert sizes == {("big", 16): 62, ("big", 8): 1, ("middle", 16): 8, ("middle", 2): 1,
                     ("small", 16): 2, ("small", 1): 1}  # fmt: skip
    tasks = [draw.task for draw in draws]
    assert tasks != sorted(tasks)
    assert not equal_draws(draws, sampler.epoch(1))
    assert not equal_draws(draws, TaskSampler(make_lengths(), 16, seed=4).epoch(0))


@pytest.mark.parametrize("steps", [1, 20, 75, 100, 400])
def test_passes_of_mixing_all_can_be_split_into_epochs_of_any_length(steps: int) -> None:
    passes = TaskSampler(make_lengths(), 16, seed=3)
    in_order = [draw for number in range(12) for draw in passes.epoch(number)]
    cut = TaskSampler(make_lengths(), 16, seed=3, steps_per_epoch=steps)
    assert len(cut) == steps and cut.total(2) == 2 * steps
    assert equal_draws([draw for number in range(2) for draw in cut.epoch(number)], in_order[: 2 * steps])
    again = TaskSampler(make_lengths(), 16, seed=3, steps_per_epoch=steps)
    assert equal_draws(again.epoch(1), in_order[steps : 2 * steps]), "the same epoch for a run that resumes"


@pytest.mark.parametrize("mixing", MIXINGS)
def test_grouping_by_length_keeps_the_rows_of_every_epoch(mixing: Mixing) -> None:
    grouped, plain = (
        TaskSampler(make_lengths(), 16, mixing=mixing, epochs=4, group_by_length=group_by_length)
        for group_by_length in (True, False)
    )
    for number in range(4):
        left, right = grouped.epoch(number), plain.epoch(number)
        assert draw_counts(left) == draw_counts(right)
        assert [draw.task for draw in left] == [draw.task for draw in right]
        assert len(left) == len(grouped)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_an_epoch_depends_only_on_its_number(mixing: Mixing) -> None:
    sampler = TaskSampler(make_lengths(), 8, mixing=mixing, epochs=3, seed=5)
    epochs = [sampler.epoch(number) for number in range(3)]
    again = TaskSampler(make_lengths(), 8, mixing=mixing, epochs=3, seed=5)
    assert equal_draws(again.epoch(2), epochs[2]) and equal_draws(again.epoch(0), epochs[0])


@pytest.mark.parametrize("mixing", MIXINGS)
def test_the_work_for_an_epoch_does_not_grow_with_its_number(
    mixing: Mixing, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    order = TaskSampler._order

    def counted(self: TaskSampler, number: int) -> np.ndarray:
        computed.append(number)
        return order(self, number)

    monkeypatch.setattr(TaskSampler, "_order", counted)
    sampler = TaskSampler(make_lengths(), 16, mixing=mixing, epochs=20)
    in_order = [sampler.epoch(number) for number in range(20)]
    assert len(computed) <= 2 * 20
    backwards = TaskSampler(make_lengths(), 16, mixing=mixing, epochs=20)
    for number in reversed(range(20)):
        assert equal_draws(backwards.epoch(number), in_order[number])
    assert len(computed) <= 4 * 20


def test_streams_continue_where_the_last_epoch_stopped() -> None:
    sampler = TaskSampler(make_lengths(), 16, mixing="uniform", seed=2, steps_per_epoch=20)
    total: dict[str, Counter[int]] = {task: Counter() for task in SIZES}
    for number in range(8):
        for task, rows in draw_counts(sampler.epoch(number)).items():
            total[task].update(rows)
        for task, n in SIZES.items():  # no row is ever two passes ahead of another
            counts = [total[task][row] for row in range(n)]
            assert max(counts) - min(counts) <= 1
    assert min(total["small"].values()) >= 10


@pytest.mark.parametrize("mixing, power", [("proportional", 1.0), ("sqrt", 0.5), ("uniform", 0.0)])
def test_tasks_are_sampled_with_the_stated_probabilities(mixing: Mixing, power: float) -> None:
    sampler = TaskSampler(make_lengths(), 16, mixing=mixing, seed=7, steps_per_epoch=4000)
    drawn = Counter(draw.task for draw in sampler.epoch(0))
    weights = np.array([n**power for n in SIZES.values()])
    assert chisquare([drawn[task] for task in SIZES], weights / weights.sum() * 4000).pvalue > 0.01


def test_annealed_mixing_moves_from_proportional_to_almost_uniform() -> None:
    sampler = TaskSampler(make_lengths(), 16, mixing="annealed", epochs=5)
    sizes = np.array(list(SIZES.values()), float)
    for number, alpha in [(0, 1.0), (1, 0.8), (2, 0.6), (4, 0.2), (9, 0.2)]:
        expected = sizes**alpha / (sizes**alpha).sum()
        np.testing.assert_allclose(list(sampler.probabilities(number).values()), expected, rtol=1e-12)
    once = TaskSampler(make_lengths(), 16, mixing="annealed", epochs=1)
    assert once.probabilities(0)["big"] == pytest.approx(1000 / 1163)


def test_grouping_by_length_reduces_padding() -> None:
    lengths = make_lengths({"a": 5000, "b": 700})

    def padding_fraction(group_by_length: bool) -> float:
        draws = TaskSampler(lengths, 32, group_by_length=group_by_length).epoch(0)
        padded = sum(len(d.indices) * lengths[d.task][d.indices].max() for d in draws)
        return 1 - sum(int(length.sum()) for length in lengths.values()) / padded

    assert padding_fraction(False) > 0.4 and padding_fraction(True) < 0.05


@pytest.mark.parametrize("mixing", ["all", "uniform"])
@pytest.mark.parametrize("group_by_length", [True, False])
def test_groups_of_candidates_are_not_split(mixing: Mixing, group_by_length: bool) -> None:
    random = np.random.default_rng(0)
    groups = random.permutation(np.repeat(np.arange(100) * 3, random.integers(1, 6, 100)))
    lengths = {"rank": random.integers(3, 90, len(groups)), "other": random.integers(3, 90, 50)}
    sampler = TaskSampler(
        lengths, 20, mixing=mixing, group_by_length=group_by_length, groups={"rank": groups}
    )
    sizes = Counter(groups.tolist())
    draws = sampler.epoch(0) + sampler.epoch(1)
    rank = [draw.indices for draw in draws if draw.task == "rank"]
    for indices in rank:
        assert all(count == sizes[group] for group, count in Counter(groups[indices].tolist()).items())
        assert len(set(indices.tolist())) == len(indices)
    assert 15 < np.mean([len(indices) for indices in rank]) < 25
    if mixing == "all":
        assert draw_counts(sampler.epoch(0))["rank"] == Counter(range(len(groups)))


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shards_partition_a_batch(world: int) -> None:
    groups = np.repeat(np.arange(40), 3)
    for known, n_units, indices in [
        (None, 11, np.arange(50, 61)),
        (None, 1, np.array([4])),
        (groups, 5, np.random.default_rng(0).permutation(15) + 30),
    ]:
        shares = [shard_indices(BatchIndices("t", indices), rank, world, known) for rank in range(world)]
        assert sorted(np.concatenate(shares).tolist()) == sorted(indices.tolist())
        units = [len(part) if known is None else len(set(known[part].tolist())) for part in shares]
        assert sum(units) == n_units and max(units) - min(units) <= 1


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mixing": "squared"}, "unknown mixing 'squared'.*sqrt"),
        ({"batch_size": 0}, "batch size 0"),
        ({"batch_tokens": 0}, "batch_tokens 0"),
        ({"seed": -1}, "seed -1"),
        ({"lengths": {"a": np.array([], np.int64)}}, "'a' has no rows"),
    ],
)
def test_invalid_arguments_are_one_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"(?s){message}"):
        TaskSampler(**{"lengths": make_lengths(), "batch_size": 4, **change})


def test_every_pass_has_the_given_fraction_of_unlabelled_rows() -> None:
    labelled = {"a": np.arange(100) < 12, "b": np.ones(20, bool)}
    lengths = {name: np.full(len(values), 5) for name, values in labelled.items()}
    made = TaskSampler(lengths, 8, seed=3, labelled=labelled, unlabelled_fraction=0.75)
    assert len(made) == 6 + 3, "12 + 36 rows of a, 20 rows of b"
    seen: list[int] = []
    for number in range(5):
        rows = np.concatenate([draw.indices for draw in made.epoch(number) if draw.task == "a"])
        assert sorted(rows[rows < 12].tolist()) == list(range(12)), "all rows with labels, once"
        assert len(rows) == 48
        seen += rows[rows >= 12].tolist()
        of_b = np.concatenate([draw.indices for draw in made.epoch(number) if draw.task == "b"])
        assert sorted(of_b.tolist()) == list(range(20))
    counts = np.bincount(seen, minlength=100)[12:]
    assert counts.sum() == 180 and set(counts.tolist()) == {2, 3}, "the 88 others in turn"
    few = TaskSampler(
        {"a": lengths["a"][:14]}, 8, labelled={"a": labelled["a"][:14]}, unlabelled_fraction=0.5
    )
    rows = np.concatenate([draw.indices for draw in few.epoch(0)])
    assert sorted(rows.tolist()) == [*range(12), *[12] * 6, *[13] * 6], "repeated if there are too few"


def test_unlabelled_groups_stay_together_in_a_mixed_pass() -> None:
    groups = np.repeat(np.arange(10), 3)
    labelled = groups < 4
    made = TaskSampler(
        {"a": np.full(30, 5)}, 6, labelled={"a": labelled}, groups={"a": groups}, unlabelled_fraction=0.5
    )
    for draw in made.epoch(0):
        _, counts = np.unique(groups[draw.indices], return_counts=True)
        assert set(counts.tolist()) == {3}
    rows = np.concatenate([draw.indices for draw in made.epoch(0)])
    assert len(rows) == 24 and (~labelled[rows]).sum() == 12


def padded(draw: BatchIndices, lengths: dict[str, np.ndarray]) -> int:
    """Return the number of tokens of a batch, with each sequence padded to the longest."""
    rows = lengths[draw.task].reshape(len(lengths[draw.task]), -1)[draw.indices]
    return len(rows) * sum(max(column) for column in rows.T.tolist())


@pytest.mark.parametrize("group_by_length", [True, False])
@pytest.mark.parametrize("mixing", ["all", "uniform"])
def test_batches_fill_the_token_budget(mixing: Mixing, group_by_length: bool) -> None:
    random = np.random.default_rng(0)
    lengths = make_lengths() | {"pairs": random.integers(1, 40, (300, 2))}
    lengths["small"][5] = 600
    made = TaskSampler(lengths, 1, batch_tokens=400, mixing=mixing, group_by_length=group_by_length, seed=3)
    epochs = [made.epoch(number) for number in range(3)]
    again = TaskSampler(lengths, 1, batch_tokens=400, mixing=mixing, group_by_length=group_by_length, seed=3)
    assert equal_draws(again.epoch(2), epochs[2]) and not equal_draws(*epochs[:2])
    assert made.total(3) == sum(map(len, epochs)) and made.total(1) == len(made) == len(epochs[0])
    draws = [draw for epoch in epochs for draw in epoch]
    for draw in draws:
        assert padded(draw, lengths) <= 400 or (draw.task, draw.indices.tolist()) == ("small", [5])
    if mixing == "all":
        everything = {task: Counter(range(len(values))) for task, values in lengths.items()}
        assert all(draw_counts(epoch) == everything for epoch in epochs)
    else:
        passes = draw_counts(draws)["small"]
        counts = [passes[row] for row in range(33)]
        assert max(counts) - min(counts) <= 1, "a pass that is split over epochs misses no row"
    tokens = [padded(draw, lengths) for draw in draws]
    assert np.mean(tokens) > 330, "most batches are nearly full"


def test_batches_within_a_token_budget_are_as_long_as_possible() -> None:
    random = np.random.default_rng(1)
    widths, rows = random.integers(1, 30, (200, 2)), random.integers(1, 4, 200)
    expected: list[list[int]] = [[]]
    for unit in range(200):
        longer = [*expected[-1], unit]
        if expected[-1] and rows[longer].sum() * widths[longer].max(0).sum() > 250:
            expected.append([unit])
        else:
            expected[-1] = longer
    assert [list(range(200))[part] for part in cut_by_tokens(widths, 250, rows)] == expected
    assert cut_by_tokens(widths, 10**40) == [slice(0, 200)]


def test_groups_of_candidates_fill_the_token_budget() -> None:
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(60), 3))
    lengths = {"rank": np.random.default_rng(1).integers(3, 30, 180)}
    draws = TaskSampler(lengths, 1, batch_tokens=300, groups={"rank": groups}).epoch(0)
    assert draw_counts(draws)["rank"] == Counter(range(180)) and max(padded(d, lengths) for d in draws) <= 300
    assert all(count == 3 for draw in draws for count in Counter(groups[draw.indices].tolist()).values())


def test_mixed_and_blockwise_batches_fill_the_token_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {"a": np.random.default_rng(1).integers(3, 60, 500)}
    labelled = {"a": np.arange(500) < 100}
    made = TaskSampler(lengths, 1, batch_tokens=200, labelled=labelled, unlabelled_fraction=0.5)
    epochs = [made.epoch(number) for number in range(4)]
    drawn = draw_counts([draw for epoch in epochs for draw in epoch])["a"]
    assert drawn == Counter({row: 4 if row < 100 else 1 for row in range(500)})
    assert made.total(4) == sum(map(len, epochs))
    monkeypatch.setattr("tasks.tokens.batch_stream.BLOCK", 64)
    by_block = TaskSampler(lengths, 1, batch_tokens=200, blocks=True).epoch(1)
    block_of = {int(row): n for n, block in enumerate(blocks_of("a", 500)) for row in block}
    assert draw_counts(by_block)["a"] == Counter(range(500))
    assert max(padded(draw, lengths) for draw in by_block) <= 200
    assert all(len({block_of[row] for row in draw.indices.tolist()}) <= 2 for draw in by_block)

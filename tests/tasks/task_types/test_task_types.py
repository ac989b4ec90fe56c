import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.heads import Head
from tasks.task import Task

RANK = Task(name="pick", kind="rank", columns=("a", "b"), labels=("yes", "no"), group="q")
PICK_1 = Task(name="pick", kind="rank", columns=("a", "b"), labels=("no", "yes"), group="q", positive=1)
SQUAD = TASKS["squad"]
NAN = math.nan


def hard_loss(task, logits, labels, groups=None):
    return task.type.loss(task, logits, labels, groups)


def decode(task, logits, groups=None):
    return task.type.decode(task, logits, groups)


def probabilities(task, logits, groups=None):
    return task.type.probabilities(task, logits, groups)


def test_the_classification_loss_matches_hand_computed_values():
    logits = torch.tensor([[2.0, 0.0], [0.5, 0.5], [1.0, -3.0]], requires_grad=True)
    found = hard_loss(TASKS["rte"], logits, torch.tensor([0.0, 1.0, NAN]))
    assert found.total.item() == pytest.approx(math.log(1 + math.exp(-2)) + math.log(2), abs=1e-6)
    assert found.count.item() == 2
    found.total.backward()
    assert logits.grad is not None and logits.grad[1].tolist() == [0.5, -0.5]
    assert logits.grad[2].tolist() == [0.0, 0.0]


def test_the_regression_loss_matches_hand_computed_values():
    logits = torch.tensor([[1.0], [4.0], [9.0]], requires_grad=True)
    found = hard_loss(TASKS["stsb"], logits, torch.tensor([3.0, 3.5, NAN]))
    assert (found.total.item(), found.count.item()) == (4.25, 2)
    found.total.backward()
    assert logits.grad is not None and logits.grad.flatten().tolist() == [-4.0, 1.0, 0.0]


def naive_rank_loss(scores, labels, groups, positive):
    total, count = 0.0, 0
    for group in set(groups):
        rows = [i for i, g in enumerate(groups) if g == group and not math.isnan(labels[i])]
        right = [i for i in rows if labels[i] == positive]
        if right:
            total_loss = sum(math.exp(scores[i]) for i in rows)
            total -= math.log(sum(math.exp(scores[i]) for i in right) / total_loss)
            count += 1
    return total, count


ROW = st.tuples(st.integers(-3, 2), st.floats(-6, 6), st.sampled_from([0.0, 1.0, NAN]))


@settings(max_examples=80, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=16), st.sampled_from([RANK, PICK_1]))
def test_the_ranking_loss_matches_a_loop_over_groups(rows, task):
    groups, scores, labels = zip(*rows, strict=True)
    logits = torch.tensor(scores)[:, None].requires_grad_()
    found = hard_loss(task, logits, torch.tensor(labels), torch.tensor(groups))
    total, count = naive_rank_loss(scores, labels, groups, task.positive)
    assert found.total.item() == pytest.approx(total, abs=1e-4)
    assert found.count.item() == count
    found.total.backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert logits.grad[torch.tensor(labels).isnan()].abs().sum() == 0


def test_the_ranking_loss_is_finite_for_a_right_candidate_far_below_the_others():
    logits = torch.tensor([[500.0], [-500.0]], requires_grad=True)
    found = hard_loss(RANK, logits, torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))
    assert found.total.item() == 1000.0
    found.total.backward()
    assert logits.grad is not None and logits.grad.flatten().tolist() == [1.0, -1.0]


@pytest.mark.parametrize("task", [TASKS["mnli"], TASKS["stsb"], RANK])
def test_the_loss_of_unlabelled_rows_is_zero_with_a_gradient(task):
    logits = torch.randn(4, task.type.n_outputs(task), requires_grad=True)
    found = hard_loss(task, logits, torch.full((4,), NAN), torch.tensor([0, 0, 1, 1]))
    assert (found.total.item(), found.count.item()) == (0.0, 0)
    found.total.backward()
    assert logits.grad is not None and logits.grad.abs().sum() == 0


@pytest.mark.parametrize("task", [TASKS["mnli"], TASKS["stsb"], RANK])
def test_half_precision_logits_give_the_float32_loss(task):
    logits = torch.randn(6, task.type.n_outputs(task), generator=torch.Generator().manual_seed(0)).bfloat16()
    labels, groups = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]), torch.tensor([4, 4, 4, 9, 9, 9])
    found = hard_loss(task, logits, labels, groups).total
    assert found.dtype == torch.float32
    assert torch.equal(found, hard_loss(task, logits.float(), labels, groups).total)


def test_losses_of_parts_of_a_batch_add_up():
    logits, labels = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3
    total_loss = hard_loss(TASKS["mnli"], logits, labels.float())
    parts = [hard_loss(TASKS["mnli"], logits[i : i + 2], labels[i : i + 2].float()) for i in range(0, 8, 2)]
    assert sum(part.total.item() for part in parts) == pytest.approx(total_loss.total.item(), rel=1e-6)
    assert sum(part.count.item() for part in parts) == total_loss.count.item() == 8


def test_logits_are_decoded_for_each_task_type():
    logits = np.array([[0.1, 2.0, 1.0], [3.0, 0.0, 0.0]], dtype=np.float32)
    assert decode(TASKS["mnli"], logits).tolist() == [1, 0]
    assert decode(TASKS["stsb"], np.array([[-1.0], [2.5], [7.0]])).tolist() == [0.0, 2.5, 5.0]
    scores, groups = np.array([[1.0], [5.0], [2.0], [2.0], [9.0]]), np.array([8, 3, 8, 8, -2])
    assert decode(RANK, scores, groups).tolist() == [1, 0, 0, 1, 0]
    assert decode(PICK_1, scores, groups).tolist() == [0, 1, 1, 0, 1]


def test_probabilities_agree_with_torch_and_sum_to_one_by_group():
    logits = np.random.default_rng(0).normal(size=(5, 3)) * 50
    expected = torch.from_numpy(logits).softmax(1).numpy()
    assert np.allclose(probabilities(TASKS["mnli"], logits), expected, atol=1e-12)
    assert probabilities(TASKS["stsb"], logits[:, :1]) is None
    groups = np.array([1, 0, 1, 0, 1])
    found = probabilities(PICK_1, logits[:, :1], groups)
    assert found is not None and np.allclose(found.sum(1), 1)
    for group in (0, 1):
        expected = torch.from_numpy(logits[groups == group, 0]).softmax(0).numpy()
        assert np.allclose(found[groups == group, 1], expected, atol=1e-12)


def test_span_loss_is_the_mean_of_start_and_end_over_labelled_windows():
    logits = torch.randn(3, 2, 5)
    labels = torch.tensor([[2.0, 3.0], [torch.nan, torch.nan], [0.0, 0.0]])
    loss = hard_loss(SQUAD, logits, labels)
    expected = sum(
        -logits[row, side].log_softmax(0)[int(labels[row, side])] / 2 for row in (0, 2) for side in (0, 1)
    )
    torch.testing.assert_close(loss.total, expected)
    assert int(loss.count) == SQUAD.type.count_items(SQUAD, labels) == 2


def test_missing_groups_are_user_errors():
    with pytest.raises(UserError, match="'pick' ranks candidates, but these rows have no groups"):
        decode(RANK, np.zeros((2, 1)))


def test_heads_match_their_formula():
    torch.manual_seed(0)
    vector = torch.randn(4, 12)
    head = Head(12, 3, hidden=8).eval()
    weights = dict(head.named_parameters())
    inner = (vector @ weights["inner.0.weight"].T + weights["inner.0.bias"]).clamp(min=0)
    expected = inner @ weights["output.weight"].T + weights["output.bias"]
    assert torch.allclose(head(vector), expected, atol=1e-6)
    teacher = Head(12, 3, hidden=0).eval()
    assert torch.allclose(teacher(vector), vector @ teacher.output.weight.T + teacher.output.bias, atol=1e-6)
    assert [tuple(value.shape) for value in teacher.parameters()] == [(3, 12), (3,)]


def test_head_dropout_is_only_active_in_training():
    head, ones = Head(200, 1, hidden=0, dropout=0.5), torch.ones(2, 200)
    torch.nn.init.ones_(head.output.weight)
    assert torch.equal(head.eval()(ones)[0], head.eval()(ones)[1])
    assert not torch.equal(head.train()(ones)[0], head.train()(ones)[1])

"""Windows over contexts, offsets of answers, n-best decoding, and the scores of SQuAD."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.checks.span_lengths import span_length_warnings
from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.rows import ANSWERS, Rows, answered
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.scoring.span_answers import decode_spans
from tasks.scoring.squad import (
    best_threshold,
    exact_match,
    gold_answers,
    normalise_answer,
    score_texts,
    token_f1,
)
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader
from tasks.tokens.span_windows import cut_windows
from tasks.tokens.tokeniser import Tokeniser

SHARED = Path(os.environ.get("MTKD_SHARED_DATA", "../shared/data"))
SQUAD = TASKS["squad"]


def examples(*rows: tuple[str, str, str | None, int]) -> Rows:
    """Rows of (question, context, answer, start); None means unlabelled, and "" means no answer."""
    answers = pa.array(
        [
            None if a is None else {"text": [a] if a else [], "answer_start": [s] if a else []}
            for _, _, a, s in rows
        ],
        ANSWERS,
    )
    uids = pa.array([f"squad/train/{n}" for n in range(len(rows))])
    texts = tuple(pa.array([row[k] for row in rows], pa.string()) for k in (0, 1))
    return Rows("squad", "train", uids, texts, answered(answers), answers=answers)


WORDS = st.text(
    st.one_of(
        st.characters(codec="utf-8", exclude_categories=("Cs",)), st.sampled_from(" .,-\u0301é中ß\u200d🙂")
    ),
    min_size=1,
    max_size=12,
)
CONTEXTS = st.lists(WORDS, min_size=1, max_size=60).map(" ".join).filter(str.strip)


@pytest.mark.parametrize("which", ["minilm", "roberta"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(context=CONTEXTS, question=WORDS, data=st.data())
def test_windows_cover_the_context_and_offsets_are_exact_on_any_text(
    request: pytest.FixtureRequest, which: str, context: str, question: str, data: st.DataObject
) -> None:
    tokeniser: Tokeniser = request.getfixturevalue(which)
    start = data.draw(st.integers(0, len(context) - 1))
    answer = context[start : start + data.draw(st.integers(1, 20))]
    length, stride = data.draw(st.integers(16, 60)), data.draw(st.integers(0, 30))
    rows = cut_windows(examples((question, context, answer, start)), tokeniser, length, stride)
    windows = rows.windows
    assert windows is not None
    texts = rows.texts[1].to_pylist()
    covered = np.zeros(len(context), bool)
    for begin, text in zip(windows.begin, texts, strict=True):
        assert context[begin : begin + len(text)] == text
        covered[begin : begin + len(text)] = True
    assert all(
        covered[i] or context[i].isspace() or not tokeniser.token_ids(pa.array([context[i]])).lengths[0]
        for i in range(len(context))
    )
    encoded = Encoded.encode(rows, tokeniser)
    reader = Reader(tokeniser, "joined", length, stride)
    assert (reader.lengths(encoded.texts) <= length).all()
    batch = Collator(reader)(encoded, np.arange(len(rows)))
    starts, ends = encoded.char_offsets or ()
    for window, (first, last) in enumerate(encoded.labels):
        if np.isnan(first) or not first:
            continue
        before = int(batch.inputs.joined.mask[window].sum()) - 1 - int(encoded.texts[1].lengths[window])
        a, b = int(first) - before, int(last) - before
        begin, stop = int(starts.row(window)[a]), int(ends.row(window)[b])
        local = start - int(windows.begin[window])
        # The tokens contain the answer, and would not without the first or the last one.
        answer_text = texts[window][local : local + len(answer)]
        assert answer_text == answer
        assert begin < local + len(answer) and stop > local
        assert a == b or (
            int(ends.row(window)[a]) > local and int(starts.row(window)[b]) < local + len(answer)
        )


def test_a_long_context_is_split_at_spaces_and_every_word_is_covered(minilm: Tokeniser) -> None:
    context = " ".join(f"word{n}" for n in range(300))
    answer, start = "word250 word251", context.index("word250")
    rows = cut_windows(examples(("which?", context, answer, start)), minilm, 64, 16)
    texts = rows.texts[1].to_pylist()
    assert len(texts) > 5
    assert all(text == text.strip() and set(text.split()) <= set(context.split()) for text in texts[:-1])
    assert {word for text in texts for word in text.split()} == set(context.split())
    assert any(answer in text for text in texts)
    assert rows.labels.tolist() == [float(answer in text) for text in texts]
    shared = [len(set(a.split()) & set(b.split())) for a, b in itertools.pairwise(texts)]
    assert min(shared) >= 2


def test_an_answer_outside_every_window_is_not_trained_on(minilm: Tokeniser) -> None:
    context = " ".join(["alpha"] * 100)
    rows = cut_windows(examples(("q", context, context[:400], 0), ("q", "beta", "beta", 0)), minilm, 32, 8)
    windows = rows.windows
    assert windows is not None and windows.lost.tolist() == [0]
    assert np.isnan(rows.labels[:-1]).all() and rows.labels[-1] == 1
    assert np.isnan(Encoded.encode(rows, minilm).labels[:-1]).all()


def test_no_answer_is_the_first_token_and_unlabelled_rows_have_no_target(minilm: Tokeniser) -> None:
    rows = cut_windows(examples(("q", "some text", "", -1), ("q", "some text", None, -1)), minilm, 32, 8)
    labels = Encoded.encode(rows, minilm).labels
    assert labels[0].tolist() == [0, 0] and np.isnan(labels[1]).all()


def test_long_questions_leave_room_for_the_context(minilm: Tokeniser) -> None:
    rows = cut_windows(examples(("why " * 200, "a short context", "short", 2)), minilm, 32, 8)
    encoded = Encoded.encode(rows, minilm)
    assert encoded.texts[0].lengths[0] == (32 - 3) // 2
    assert not np.isnan(encoded.labels).any()


def test_answers_and_questions_that_are_too_long_give_warnings(minilm: Tokeniser) -> None:
    context = "one two three four five six seven eight nine ten"
    long_question = "why " * 100
    rows = examples(("q", context, "two three four", 4), (long_question, context, "nine", 39))
    encoded = Encoded.encode(cut_windows(rows, minilm, 96, 8), minilm)
    task = replace(TASKS["squad"], max_answer_tokens=2)
    long_answer, cut = span_length_warnings(task, encoded, minilm)
    assert (
        long_answer.startswith("1 answer of squad has more than 2 tokens")
        and "max_answer_tokens" in long_answer
    )
    assert cut.startswith("1 question of squad has more than 46 tokens;")
    assert span_length_warnings(TASKS["squad"], encoded, minilm) == [cut]
    logits = np.zeros((len(encoded), 2, 96), np.float32)
    tokens = np.flatnonzero(encoded.windows.row == 0)  # the first row: logits of its answer
    logits[tokens, 0, int(encoded.labels[0, 0])] = logits[tokens, 1, int(encoded.labels[0, 1])] = 9
    layout = minilm.layout(2)
    found = [decode_spans(encoded, logits, layout, most).candidates[0][0].text for most in (2, 3)]
    assert found[1] == "two three four" and len(found[0].split()) <= 2


def test_encoders_that_read_texts_separately_are_rejected(minilm: Tokeniser) -> None:
    with pytest.raises(UserError, match="question and the context separately"):
        Reader(minilm, "separate", 32).rows(examples(("q", "c", "c", 0)))


def naive_best(first: np.ndarray, last: np.ndarray, inside: np.ndarray) -> list[tuple[float, int, int]]:
    spans = [
        (float(first[i] + last[j]), i, j)
        for i in np.flatnonzero(inside)
        for j in range(i, min(i + 30, len(last)))
        if inside[j]
    ]
    return sorted(spans, reverse=True)


def test_decoding_matches_a_naive_search(minilm: Tokeniser) -> None:
    context = "The castle on the hill was painted bright red in 1850 by two brothers from Leeds . " * 3
    reader = Reader(minilm, "joined", 40, 10)
    rows = reader.rows(examples(("who did it?", context, None, -1), ("when?", "In 1850.", None, -1)))
    encoded = Encoded.encode(rows, minilm)
    batch = Collator(reader)(encoded, np.arange(len(rows)))
    mask, ends = batch.inputs.joined.mask.numpy(), batch.inputs.joined.ends.numpy()
    logits = np.random.default_rng(0).normal(size=(len(rows), 2, mask.shape[1])).astype(np.float32)
    found = decode_spans(encoded, logits, minilm.layout(2), 30, n_best=5)
    starts, stops = encoded.char_offsets or ()
    for example in range(2):
        pool = {}
        for window in np.flatnonzero(rows.windows.row == example):
            before = int(np.flatnonzero(ends[window])[0]) + 1
            inside = mask[window].copy()
            inside[:before], inside[int(mask[window].sum()) - 1] = False, False
            for score, i, j in naive_best(logits[window, 0], logits[window, 1], inside):
                begin = int(rows.windows.begin[window])
                a, b = int(starts.row(window)[i - before]), int(stops.row(window)[j - before])
                text = rows.texts[1][int(window)].as_py()[a:b]
                pool.setdefault(text, (score, begin + a))
                pool[text] = max(pool[text], (score, begin + a), key=lambda pair: pair[0])
        best = sorted(((score, text) for text, (score, _) in pool.items()), reverse=True)
        answers = [(c.score, c.text) for c in found.candidates[example]]
        assert answers[0][1] == best[0][1]
        np.testing.assert_allclose([s for s, _ in answers][:1], [s for s, _ in best][:1], rtol=1e-5)
        full_context = (context, "In 1850.")[example]
        assert all(full_context[c.start : c.start + len(c.text)] == c.text for c in found.candidates[example])
        of = logits[rows.windows.row == example]
        np.testing.assert_allclose(found.null[example], (of[:, 0, 0] + of[:, 1, 0]).min(), rtol=1e-5)
    assert found.texts(None) == [c[0].text for c in found.candidates]
    assert found.texts(-np.inf) == ["", ""]


@pytest.mark.parametrize(
    ("answer", "golds", "exact", "f1"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1, 1),
        ("an apple, a day", ["apple day"], 1, 1),
        ("theatre", ["the atre"], 0, 0),
        ("Saint-Denis", ["saintdenis"], 1, 1),
        ("U.S.", ["us"], 1, 1),
        ("in 1850 and 1851", ["1850"], 0, 0.4),
        ("red red blue", ["red blue blue"], 0, 2 / 3),
        ("Leeds", ["York", "in Leeds"], 0, 2 / 3),
        ("Leeds", ["York", "Leeds."], 1, 1),
        ("", [""], 1, 1),
        ("", ["Leeds"], 0, 0),
        ("Leeds", [""], 0, 0),
        ("the", [""], 1, 1),
        ("  spaced\tout ", ["spaced out"], 1, 1),
        ("“quoted”", ["quoted"], 0, 0),
    ],
)
def test_scores_of_difficult_answers(answer: str, golds: list[str], exact: float, f1: float) -> None:
    assert exact_match(answer, golds) == exact
    assert token_f1(answer, golds) == pytest.approx(f1)


def test_gold_answers_of_only_articles_count_as_no_answer() -> None:
    answers = pa.array(
        [
            {"text": ["the", "."], "answer_start": [0, 4]},
            {"text": [], "answer_start": []},
            {"text": ["a cat", "the"], "answer_start": [0, 1]},
        ],
        ANSWERS,
    )
    assert gold_answers(answers) == [[""], [""], ["a cat"]]
    assert normalise_answer("A  Cat's (the) tail") == "cats tail"


def test_answerable_and_unanswerable_questions_are_scored_separately() -> None:
    scores = score_texts(["red", "", "blue", ""], [["red"], ["red"], [""], [""]], 0.5)
    assert (scores.exact_match, scores.f1) == (0.5, 0.5)
    assert scores.by_kind == {
        "has_answer_exact_match": 0.5,
        "has_answer_f1": 0.5,
        "no_answer_accuracy": 0.5,
    }
    assert score_texts(["red"], [["red"]], None).by_kind == {}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=12))
def test_the_tuned_threshold_is_optimal(cases: list[tuple[int, int, bool]]) -> None:
    lead = np.array([float(a) for a, _, _ in cases])
    nulls = np.array([2.0 * none for _, _, none in cases])
    spans = np.array([0.0 if none else float(score) for _, score, none in cases])

    def total(threshold: float) -> float:
        return float(np.where(lead <= threshold, spans, nulls).sum())

    found = best_threshold(lead, spans, nulls)
    assert total(found) == max(total(edge) for edge in np.arange(-4, 5) + 0.5)


def test_pocket_contexts_load_with_their_answers(minilm: Tokeniser) -> None:
    rows = load_rows(open_data("pocket"), TASKS["squad_v2"], "validation", limit=40)
    assert rows.labelled and 0 < rows.labels.mean() < 1
    encoded = Encoded.encode(Reader(minilm, "joined", 128).rows(rows), minilm)
    assert len(encoded) == 40 and not np.isnan(encoded.labels).any()
    assert ((encoded.labels > 0).all(1) == (rows.labels == 1)).all()


@pytest.mark.skipif(not (SHARED / "squad").is_dir(), reason="no ../shared/data")
def test_real_answers_are_recovered_from_their_tokens(minilm: Tokeniser) -> None:
    rows = load_rows(open_data(str(SHARED)), SQUAD, "train", limit=400)
    reader = Reader(minilm, "joined", 128, 32)
    cut = reader.rows(rows)
    encoded = Encoded.encode(cut, minilm)
    logits = np.zeros((len(encoded), 2, 128), np.float32)
    known = np.flatnonzero(encoded.labels[:, 0] > 0)
    for side in (0, 1):
        logits[known, side, encoded.labels[known, side].astype(int)] = 10
    found = decode_spans(encoded, logits, minilm.layout(2), 30)
    assert rows.answers is not None
    scores = score_texts(found.texts(None), gold_answers(rows.answers), None)
    # The rest are parts of words ("10" of "10th"), and answers of more than 30 tokens.
    assert scores.exact_match > 0.97 and scores.f1 > 0.985
    assert len(cut) > len(rows) and len(cut.windows.lost) <= 2

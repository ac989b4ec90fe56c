"""Greedy decoding, sampling and beam search whose result does not depend on the batch.

Batching and padding change logits in their last bits. Where that could change a choice (the best token leads
by less than CLOSE), the prompt is decoded again in a batch of its own. That batch contains the prompt twice,
because libraries multiply single rows in a different order. In bf16 the rounding errors exceed CLOSE; there
the result relies on a row's matrix product being independent of the number of rows, which holds for oneDNN.
The noise for sampling depends only on (seed, paragraph, question, step, token).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from augment.counter_rng import INCREMENT, splitmix64
from augment.questions.generation.batch_size import BatchSize
from augment.questions.generation.decoder import Decoder
from mtkd.torch_state import with_torch_defaults

CLOSE = 1e-3
_TOP = 256  # tokens are sampled from this many most likely ones


@dataclass(frozen=True)
class Prompt:
    """The token ids of a prompt, and the random number stream for sampling its questions."""

    ids: tuple[int, ...]
    stream: int = 0


@dataclass(frozen=True)
class Strategy:
    """How tokens are chosen.

    Attributes:
        beams: 1 = no beam search; more = beam search that returns this many questions per prompt.
        sample: draw tokens at random; `temperature` divides the logits, and the draw is from the most likely
            tokens that make up `top_p` of the probability (256 at most).
        limit: maximum number of tokens in a question; an end token ends it earlier.
    """

    beams: int = 1
    sample: bool = False
    temperature: float = 1.0
    top_p: float = 0.95
    limit: int = 48


@with_torch_defaults
@torch.inference_mode()
def decode(
    decoder: Decoder, prompts: list[Prompt], strategy: Strategy, batch_size: int | BatchSize
) -> list[list[list[int]]]:
    """Decode the prompts, batching those of similar length.

    Args:
        batch_size: how many prompts are decoded at once; affects only speed and memory.

    Returns:
        the questions of each prompt, best first (one, or one per beam), as ids without start and end tokens.
    """
    sizes = BatchSize(batch_size) if isinstance(batch_size, int) else batch_size
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number].ids))
    search = _beam_search if strategy.beams > 1 else _decode_single
    done: list[list[list[int]]] = [[] for _ in prompts]

    def run(part: list[int]) -> list[_DecodedPrompt]:
        several = part if len(part) > 1 else part * 2
        return search(decoder, [prompts[number] for number in several], strategy)[: len(part)]

    while order:
        part, results = sizes.next_batch(order, run)
        order = order[len(part) :]
        for number, result in zip(part, results, strict=True):
            if result.margin < CLOSE and len(part) > 1:
                result = search(decoder, [prompts[number]] * 2, strategy)[0]
            done[number] = result.questions
    return done


@dataclass(frozen=True)
class _DecodedPrompt:
    """The questions of a prompt, and the smallest margin by which a token or beam was chosen."""

    questions: list[list[int]]
    margin: float


def _decode_single(decoder: Decoder, prompts: list[Prompt], strategy: Strategy) -> list[_DecodedPrompt]:
    """Decode one question per prompt; finished rows are dropped while at least two others continue."""
    choose = _sampler(strategy) if strategy.sample else _greedy
    end_tokens = _end_tokens(decoder)
    count = len(prompts)
    streams = np.array([prompt.stream for prompt in prompts], np.uint64)
    state = decoder.start([list(prompt.ids) for prompt in prompts], 1, strategy.limit)
    tokens = torch.full((count,), _start_token(decoder), device=decoder.device)
    questions: list[list[int]] = [[] for _ in prompts]
    margins = np.full(count, np.inf)
    rows = np.arange(count)
    ended = np.zeros(count, bool)
    for step in range(strategy.limit):
        tokens, margin = choose(decoder.step(state, tokens), streams[rows], step)
        margins[rows] = np.where(ended[rows], margins[rows], np.minimum(margins[rows], margin.cpu().numpy()))
        chosen = tokens.tolist()
        ended[rows] |= [token in end_tokens for token in chosen]
        going = np.flatnonzero(~ended[rows]).tolist()
        for index in going:
            questions[rows[index]].append(chosen[index])
        if not going:
            break
        if 1 < len(going) < len(chosen):
            continuing = torch.tensor(going, device=decoder.device)
            state.keep(continuing, continuing)
            tokens, rows = tokens[continuing], rows[going]
    return [_DecodedPrompt([question], float(m)) for question, m in zip(questions, margins, strict=True)]


Choose = Callable[[Tensor, np.ndarray, int], tuple[Tensor, Tensor]]


def _greedy(logits: Tensor, streams: np.ndarray, step: int) -> tuple[Tensor, Tensor]:
    """The most likely token of each row of (R, V) logits, and its lead over the second."""
    best = logits.float().topk(2)
    return best.indices[:, 0], best.values[:, 0] - best.values[:, 1]


def _sampler(strategy: Strategy) -> Choose:
    """Sample with the Gumbel-max trick, which turns a draw into an argmax with a known margin."""

    def choose(logits: Tensor, streams: np.ndarray, step: int) -> tuple[Tensor, Tensor]:
        scaled = logits.float() / strategy.temperature
        top = scaled.topk(min(_TOP, scaled.shape[1]))
        shares = (top.values - scaled.logsumexp(1, keepdim=True)).exp()
        noisy = top.values + _gumbel(streams, step, top.indices)
        before = shares.cumsum(1) - shares
        # Compare slightly smaller and larger nuclei: a token at the edge must not decide the outcome.
        winners = [
            noisy.masked_fill(~_nucleus(shares, before, strategy.top_p + slack), -torch.inf).topk(2)
            for slack in (0.0, -CLOSE / 10, CLOSE / 10)
        ]
        choices = [winner.indices[:, 0] for winner in winners]
        lead = winners[2].values[:, 0] - winners[2].values[:, 1]
        same = (choices[0] == choices[1]) & (choices[0] == choices[2])
        tokens = top.indices.gather(1, choices[0][:, None])[:, 0]
        return tokens, torch.where(same, lead, 0.0)

    return choose


def _nucleus(shares: Tensor, before: Tensor, top_p: float) -> Tensor:
    """(R, N) bool, the most likely tokens up to `top_p`, and all that are as likely as the last of them."""
    inside = before < top_p
    inside[:, 0] = True
    least = shares.masked_fill(~inside, 2.0).amin(1, keepdim=True)
    return shares >= least * (1 - CLOSE / 10)


def _gumbel(streams: np.ndarray, step: int, tokens: Tensor) -> Tensor:
    """(R, N) Gumbel noise, a function of (stream, step, token)."""
    counters = (tokens.cpu().numpy().astype(np.uint64) + np.uint64(step << 32)) + np.uint64(1)
    bits = splitmix64(streams.astype(np.uint64)[:, None] + INCREMENT * counters)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return torch.from_numpy(-np.log(-np.log(uniform))).to(tokens.device, torch.float32)


def _beam_search(decoder: Decoder, prompts: list[Prompt], strategy: Strategy) -> list[_DecodedPrompt]:
    """Beam search for the questions with the highest mean log-probability per token.

    Of the 2K most likely continuations of a prompt, the finished ones are set aside and the best K others are
    kept. A prompt is done when its best unfinished question, at its current mean, beats none of its K
    finished ones.
    """
    count = len(prompts)
    width = strategy.beams
    end_tokens = _end_tokens(decoder)
    state = decoder.start([list(prompt.ids) for prompt in prompts], width, strategy.limit)
    tokens = torch.full((count * width,), _start_token(decoder), device=decoder.device)
    scores = torch.full((count, width), -torch.inf, device=decoder.device)
    scores[:, 0] = 0.0
    hypotheses = [_Hypotheses(width) for _ in prompts]
    texts: list[list[list[int]]] = [[[] for _ in range(width)] for _ in prompts]
    ends = torch.tensor(sorted(end_tokens), device=decoder.device)
    for step in range(1, strategy.limit + 1):
        logs = decoder.step(state, tokens).float().log_softmax(1).view(count, width, -1)
        best = (scores[:, :, None] + logs).flatten(1).topk(2 * width + 1)
        from_row = best.indices // logs.shape[2]
        token = best.indices % logs.shape[2]
        ended = torch.isin(token, ends)
        ended[:, -1] = True
        beams = torch.argsort(ended.long(), stable=True, dim=1)[:, : width + 1]
        scores = best.values.gather(1, beams[:, :width])
        lead = scores[:, -1] - best.values.gather(1, beams)[:, -1]
        for index, hypothesis in enumerate(hypotheses):
            if hypothesis.settled:
                continue
            hypothesis.margin = min(hypothesis.margin, float(lead[index]))
            rows, ids = from_row[index].tolist(), token[index].tolist()
            for rank in range(width):
                if ids[rank] in end_tokens:
                    hypothesis.add(texts[index][rows[rank]], float(best.values[index, rank]), step)
            texts[index] = [texts[index][rows[k]] + [ids[k]] for k in beams[index, :width].tolist()]
            hypothesis.settle(float(scores[index, 0]) / step)
        if all(hypothesis.settled for hypothesis in hypotheses):
            break
        base = torch.arange(count, device=decoder.device)[:, None] * width
        state.reorder((base + from_row.gather(1, beams[:, :width])).flatten())
        tokens = token.gather(1, beams[:, :width]).flatten()
    for index, hypothesis in enumerate(hypotheses):
        for row, text in enumerate(texts[index] if not hypothesis.settled else []):
            hypothesis.add(text, float(scores[index, row]), len(text))
    return [hypothesis.result() for hypothesis in hypotheses]


class _Hypotheses:
    """The finished questions of one prompt, sorted by mean log-probability."""

    def __init__(self, width: int):
        self.width = width
        self.margin = float("inf")
        self.settled = False
        self.done: list[tuple[float, list[int]]] = []

    def add(self, text: list[int], score: float, length: int) -> None:
        self.done.append((score / max(length, 1), text))
        self.done.sort(key=lambda entry: -entry[0])

    def settle(self, running: float) -> None:
        """Stop if the best unfinished question, with the mean `running`, does not beat the finished ones."""
        if len(self.done) >= self.width:
            lead = self.done[self.width - 1][0] - running
            self.settled = lead >= 0
            self.margin = min(self.margin, abs(lead))

    def result(self) -> _DecodedPrompt:
        means = [mean for mean, _ in self.done[: self.width + 1]]
        leads = [above - below for above, below in itertools.pairwise(means)]
        return _DecodedPrompt([text for _, text in self.done[: self.width]], min([self.margin, *leads]))


def _end_tokens(decoder: Decoder) -> set[int]:
    end = decoder.config.eos_token_id
    return set(end) if isinstance(end, list) else {end}


def _start_token(decoder: Decoder) -> int:
    start = decoder.config.decoder_start_token_id
    return decoder.config.pad_token_id if start is None else start

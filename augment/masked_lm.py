"""Masked language models: the most likely words at a position in a text, and the vectors of words."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from multiprocessing import parent_process
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from augment.tagged_text import split_words
from mtkd.device import find_device
from mtkd.models.digest import digest_weights
from mtkd.models.encoders.pretrained_config import config_of, locate
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.pretrained_weights import load_pretrained
from mtkd.outputs import OutputSpec
from mtkd.torch_state import isolated, with_torch_defaults
from tasks.common.errors import UserError, shorten
from tasks.common.sha256 import digest_bytes
from tasks.tokens.batching import ModelInputs, Tokens
from tasks.tokens.ragged import RaggedArray
from tasks.tokens.tokeniser import Tokeniser

_TOKENS = 1024  # per batch of copies of one text, each masked at another position
_BEFORE = "a"  # the word that others are tokenised after, because some tokenisers mark spaces


class MaskedLM:
    """A masked language model, its tokeniser, and which of its tokens are whole words.

    Args:
        model: a transformers `...ForMaskedLM`.

    Attributes:
        words: the whole words of the vocabulary.
        longest: the number of tokens of a text that the model reads.
    """

    def __init__(self, model: Any, tokeniser: Tokeniser, device: torch.device):
        self.model = model.to(device).eval()
        self.tokeniser = tokeniser
        self._device = device
        self._encoder = TransformerEncoder(config_of(model.config), model.base_model)
        self._specials = tokeniser.layout(1).specials
        self.longest = self._encoder.positions - tokeniser.layout(1).n_specials
        self.words, self._ids = self._whole_words()

    @property
    def digest(self) -> str:
        """A digest of the weights and the tokeniser."""
        return digest_bytes(digest_weights(self.model), self.tokeniser.digest)

    @with_torch_defaults
    def fill(self, ids: np.ndarray, positions: Sequence[int], count: int) -> list[tuple[str, ...]]:
        """The `count` most likely words at each position of a text with a mask there, sorted.

        Batches hold copies of this text only, so the results do not depend on other texts.

        Args:
            ids: the token ids of the text, of which it reads the first `longest`.
            positions: indices of tokens, below `longest`.
        """
        before, after = self._specials
        row = torch.tensor([*before, *ids[: self.longest].tolist(), *after])
        most_likely: list[tuple[str, ...]] = []
        step = max(1, _TOKENS // len(row))
        for start in range(0, len(positions), step):
            masks = torch.tensor(positions[start : start + step]) + len(before)
            batch_rows, batch = torch.arange(len(masks)), row.repeat(len(masks), 1)
            batch[batch_rows, masks] = self.tokeniser.hf.mask_token_id
            tokens = Tokens(batch, torch.ones_like(batch, dtype=torch.bool), torch.zeros_like(batch))
            with torch.no_grad():
                inputs = ModelInputs(tokens).to(self._device)
                logits = self._encoder.run(self.model, inputs, OutputSpec())[0].logits
            best = logits[batch_rows, masks][:, self._ids].topk(min(count, len(self._ids))).indices
            most_likely += [tuple(sorted(self.words[word] for word in words)) for words in best.tolist()]
        return most_likely

    def embeddings(self) -> np.ndarray:
        """(len(words), d) float32, the input embedding of each of `words`."""
        return self._table[self._ids]

    def mean_embeddings(self, words: Sequence[str]) -> np.ndarray:
        """(n, d) float32, the mean of the input embeddings of each word's tokens."""
        tokens, table = self._tokens(words), self._table
        return np.array([table[tokens.row(n)].mean(0) for n in range(len(words))])

    @property
    def _table(self) -> np.ndarray:
        table: np.ndarray = self._encoder.embeddings.weight.detach().cpu().numpy()
        return table

    def _tokens(self, words: Sequence[str]) -> RaggedArray:
        """The token ids of each word where it follows another one."""
        token_ids = self.tokeniser.token_ids(pa.array([_BEFORE, *(f"{_BEFORE} {word}" for word in words)]))
        first = len(token_ids.row(0))
        return RaggedArray.from_lists([token_ids.row(n)[first:].tolist() for n in range(1, len(token_ids))])

    def _whole_words(self) -> tuple[list[str], np.ndarray]:
        """The words that are one token, and their ids."""
        hf = self.tokeniser.hf
        tokens = hf.convert_ids_to_tokens(list(range(self.tokeniser.vocab_size)))
        texts = [hf.convert_tokens_to_string([token or ""]).strip() for token in tokens]
        likely = [n for n, text in enumerate(texts) if _is_word(text)]
        encoded = self._tokens([texts[n] for n in likely])
        single_token = [n for position, n in enumerate(likely) if encoded.row(position).tolist() == [n]]
        return [texts[n] for n in single_token], np.array(single_token, np.int64)


@functools.lru_cache(maxsize=1)
@isolated
def open_masked_lm(name: str, device: str | None = None) -> MaskedLM:
    """Load a masked language model; each process loads it once.

    Args:
        name: hub name or directory.
        device: see `mtkd.device.find_device`.

    Raises:
        UserError: there is no such model or device, or the model has no masked-LM head.
    """
    from transformers import AutoModelForMaskedLM

    if parent_process() is not None:
        torch.set_num_threads(1)  # the other workers use the other cores
    model, missing = load_pretrained(AutoModelForMaskedLM, locate(name), "masked language model")
    if missing:
        raise UserError(
            f"{name!r} has no masked-LM head (missing weights: {shorten(sorted(missing))})",
            expected="a model pretrained to fill masks, with its head",
            hint="use a pretrained checkpoint such as bert-base-uncased, before any fine-tuning",
        )
    return MaskedLM(model, Tokeniser.load(locate(name)), find_device(device))


def _is_word(text: str) -> bool:
    return text[:1].isalnum() and len(split_words(text)) == 1

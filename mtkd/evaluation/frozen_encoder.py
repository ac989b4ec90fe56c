"""The vectors of texts from a pretrained encoder that is not trained, kept on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mtkd.device import find_device
from mtkd.models.encoders.pretrained_config import digest_encoder, locate
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.inference import pooled_vectors
from mtkd.torch_state import isolated
from tasks.common.files import atomic_path, directory_for
from tasks.common.locks import locked
from tasks.common.progress import progress
from tasks.common.sha256 import digest_bytes
from tasks.data.loading import digest_rows
from tasks.data.rows import Rows
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser

_LENGTH = 128


class FrozenEncoder:
    """Represents a text by the mean of a pretrained encoder's last hidden states over its first 128 tokens.

    The weights are read when they are first needed.

    Args:
        name: hub name or directory of an encoder, or `minilm`.
        cache: directory in which the vectors are kept; None = they are not kept.
        device: such as "cuda:1"; None = the best available device.
    """

    def __init__(self, name: str, cache: Path | None = None, device: str | None = None):
        self.name = name
        self._cache = cache
        self._device = device
        self._loaded: tuple[TransformerEncoder, Reader] | None = None

    def vectors(self, rows: Rows) -> list[np.ndarray]:
        """For each text column an (n, width) float32 array.

        Raises:
            UserError: there is no such encoder.
        """
        files = [self._file(rows, column) for column in range(len(rows.texts))]
        return [self._column(rows, column, file) for column, file in enumerate(files)]

    def _file(self, rows: Rows, column: int) -> Path | None:
        if self._cache is None:
            return None
        identity = digest_bytes(digest_encoder(self.name) or self.name, digest_rows(rows), str(_LENGTH))
        return self._cache / f"{rows.task}-{rows.split}-{column}-{identity[:16]}.safetensors"

    def _column(self, rows: Rows, column: int, file: Path | None) -> np.ndarray:
        if file is not None and (cached := _read_cached(file)) is not None:
            return cached
        single = replace(rows, texts=(rows.texts[column],), answers=None)
        vectors = self._encode(single, f"encoding {rows.task}/{rows.split}")
        if file is not None:
            digest = {"digest": digest_bytes(vectors.tobytes())}
            with (
                locked(file.parent, wait=True),
                atomic_path(file) as temporary,
                directory_for(temporary) as inside,
            ):
                save_file({"vectors": vectors}, inside, digest)
        return vectors

    def _encode(self, rows: Rows, label: str) -> np.ndarray:
        encoder, reader = self._load()
        encoded = Encoded.encode(rows, reader.tokeniser)
        with progress(label, len(rows)) as advance:
            return pooled_vectors(encoder, reader, encoded, advance=advance)

    @isolated
    def _load(self) -> tuple[TransformerEncoder, Reader]:
        if self._loaded is None:
            encoder = TransformerEncoder.pretrained(self.name, "mean").to(find_device(self._device)).eval()
            length = min(_LENGTH, encoder.positions or _LENGTH)
            self._loaded = encoder, Reader(Tokeniser.load(locate(self.name)), "joined", length, 0)
        return self._loaded


def _read_cached(file: Path) -> np.ndarray | None:
    """The vectors that were kept in a file; None if it is missing or damaged."""
    try:
        with safe_open(file, "np") as opened:
            vectors: np.ndarray = opened.get_tensor("vectors")
            digest = (opened.metadata() or {}).get("digest")
    except (OSError, SafetensorError):
        return None
    return vectors if digest == digest_bytes(vectors.tobytes()) else None

"""The CTranslate2 backend: the model is converted once to int8 weights, which are kept with the original."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from augment.questions.generation.decoding import Prompt, Strategy
from augment.questions.generator import Generator, digest_generator
from tasks.common.errors import UserError
from tasks.common.files import staged_directory
from tasks.common.hub_loading import quiet_transformers
from tasks.common.locks import locked
from tasks.common.urls import cache_directory

_WEIGHTS = "model/model.bin"
_BATCH = 32  # fixed, because the output may depend on which prompts are decoded together


def check_installed() -> None:
    """Raise UserError if ctranslate2 is not installed."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise UserError(
            "`backend='ctranslate2'`: the package ctranslate2 is not installed",
            expected="native, which needs no other package",
            hint="pip install ctranslate2",
        ) from error


def convert(generator: Generator) -> Path:
    """Convert the model unless that was done before, and return the path of the converted model.

    It is kept in the generator's directory, or in the cache for a model from the hub.
    """
    directory = Path(generator.name)
    parent = directory if directory.is_dir() else cache_directory()
    target = parent / f"ctranslate2-int8-{digest_generator(generator)[:16]}"
    if not (target / _WEIGHTS).is_file():
        with locked(target, wait=True):
            if not (target / _WEIGHTS).is_file():  # another process may just have written it
                _convert(generator, target)
    return target / "model"


def _convert(generator: Generator, target: Path) -> None:
    from ctranslate2.converters import TransformersConverter

    with staged_directory(target, _WEIGHTS) as temporary, quiet_transformers():
        saved = temporary / "source"
        generator.model.save_pretrained(saved)
        generator.tokenizer.save_pretrained(saved)
        TransformersConverter(str(saved)).convert(str(temporary / "model"), quantization="int8")
        shutil.rmtree(saved)


def open_engine(generator: Generator) -> Any:
    """Return a `generate.Decode` function: greedy or beam search in batches of fixed size."""
    import ctranslate2
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    translator = ctranslate2.Translator(
        str(convert(generator)), device=device, inter_threads=1, intra_threads=torch.get_num_threads()
    )
    tokenizer = generator.tokenizer

    def decode(prompts: list[Prompt], strategy: Strategy) -> list[list[list[int]]]:
        results = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(list(prompt.ids)) for prompt in prompts],
            beam_size=strategy.beams,
            num_hypotheses=strategy.beams,
            max_decoding_length=strategy.limit,
            max_input_length=0,
            max_batch_size=_BATCH,
        )
        return [
            [tokenizer.convert_tokens_to_ids(tokens) for tokens in result.hypotheses] for result in results
        ]

    return decode

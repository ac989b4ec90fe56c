"""Transformer encoders: any Hugging Face encoder as a teacher, or with fewer layers as a student."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtkd.models.capture import Capture, attach_capture, register_attention
from mtkd.models.encoders.bi_encoders import require_bi_encoder
from mtkd.models.encoders.config_checks import configuration_errors
from mtkd.models.encoders.encoder import Encoder
from mtkd.models.encoders.pretrained_config import (
    PairEncoding,
    TransformerConfig,
    locate,
    pooler_option,
    pretrained_config,
    with_sizes,
)
from mtkd.models.encoders.text_vectors import Pooling, compare_vectors, pool_text, side_by_side
from mtkd.models.encoders.transformer_init import (
    layers_to_copy,
    require_pretrained_tokens,
    source_name,
    student_transformer,
)
from mtkd.models.encoders.transformer_student import TransformerStudentSettings
from mtkd.models.initialisation import InitContext, InitSpec, copy_layers
from mtkd.models.last_layer import make_selective, needed_positions, reads_first_token
from mtkd.models.pretrained_weights import load_pretrained, load_pruned
from mtkd.models.pruning import FactorisedEmbedding, prune_into, resize_heads
from mtkd.outputs import EncoderOutput, OutputSpec
from tasks.common.errors import UserError, shorten
from tasks.common.files import write_json
from tasks.common.hub_loading import quiet_transformers
from tasks.common.records import read_record
from tasks.tokens.batching import ModelInputs, Tokens


class TransformerEncoder(Encoder[TransformerStudentSettings, TransformerConfig]):
    """A Hugging Face encoder that returns one vector per row, and intermediate outputs on request.

    As a bi-encoder, it reads two texts side by side in one sequence, in which no token attends to the other
    text and positions are counted in each text. Their vectors u and v become [u; v; |u - v|; u * v] (Conneau
    et al. 2017; Reimers and Gurevych 2019).
    """

    Settings = TransformerStudentSettings
    Config = TransformerConfig
    stops_early = True  # a forward pass runs no layers above the highest one that is needed

    def __init__(self, config: TransformerConfig, body: nn.Module | None = None):
        super().__init__(config)
        from transformers import AutoModel

        if body is None:
            hf_config = config.build_hf()
            with configuration_errors():
                body = AutoModel.from_config(hf_config, **pooler_option(config))
        if config.head_size:
            resize_heads(body, config.spec.layers, config.spec.heads, config.head_size)
        if config.embedding_rank:
            vocab_size = int(body.config.vocab_size)  # type: ignore[union-attr, arg-type]
            table = FactorisedEmbedding(vocab_size, config.embedding_rank, config.spec.hidden_size)
            body.set_input_embeddings(table)  # type: ignore[operator]
        self.body = body
        if config.pairs != "cross-encoder":
            require_bi_encoder(config)
        self.reads_token_types = getattr(body.config, "type_vocab_size", 0) > 1
        self._watched = attach_capture(body, self.n_layers)
        self._selects_tokens = make_selective(body, self.n_layers)
        positions = next((m for n, m in body.named_modules() if n.endswith("position_embeddings")), None)
        padding = getattr(positions, "padding_idx", None)
        # RoBERTa-style models start counting positions after the padding id.
        self._first_position: int = 0 if padding is None else padding + 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        register_attention()  # the model may have been unpickled in another process

    @classmethod
    def config_from_settings(
        cls, settings: TransformerStudentSettings, init_spec: InitSpec, vocab_size: int = 1
    ) -> TransformerConfig:
        """The configuration of the encoder that the student starts from, with the sizes in the settings.

        Raises:
            UserError: the sizes do not fit together, or do not fit the encoder that the student starts from.
        """
        return student_transformer(settings.transformer, init_spec)

    @classmethod
    def build(cls, settings: TransformerStudentSettings, context: InitContext) -> TransformerEncoder:
        """Build a student with random weights, with layers of another encoder, or by pruning the teacher.

        Raises:
            UserError: the sizes or the vocabulary do not match the encoder that the student starts from.
        """
        transformer = settings.transformer
        if context.kept is not None:
            teacher_context = replace(context, tokeniser=context.teacher_tokeniser, kept=None)
            return cls.build(settings, teacher_context)._with_tokens(context.kept, context.tokeniser.pad_id)
        config = cls.config_from_settings(settings, context.init_spec)
        if context.own_vocabulary and settings.vocabulary != "encoder":
            require_pretrained_tokens(transformer, context)
            config = with_sizes(config, vocab_size=context.tokeniser.vocab_size)
        student = cls(config)
        if transformer.init == "random":
            return student
        if transformer.init == "teacher":
            assert isinstance(context.teacher, TransformerEncoder), "the configuration refuses others"
            source = context.teacher
        else:
            pooling: Pooling = "pooler" if config.pooling == "pooler" else "cls"
            name = source_name(transformer, context.init_spec.encoder)
            source = cls.pretrained(name, pooling, pairs="cross-encoder")  # only its weights are copied
        models = student.body, student.n_layers, source.body, source.n_layers
        if not transformer.prune:
            copy_layers(*models, layers_to_copy(transformer, student.n_layers, source.n_layers))
            return student
        assert context.importance is not None and config.head_size, "measured before the student is built"
        if transformer.init_layers == "importance":
            layers = context.importance.best_layers(student.n_layers)
        else:
            layers = layers_to_copy(transformer, student.n_layers, source.n_layers)
        prune_into(*models, layers, context.importance, config.head_size)
        return student

    def _with_tokens(self, token_ids: np.ndarray, pad_id: int) -> TransformerEncoder:
        """The same encoder with the embeddings of the tokens `token_ids` only, which get the ids 0, 1, ..."""
        encoder = type(self)(with_sizes(self.config, vocab_size=len(token_ids), pad_token_id=pad_id))
        sizes = {name: weight.shape for name, weight in encoder.state_dict().items()}
        weights = self.state_dict().items()
        encoder.load_state_dict({name: w if w.shape == sizes[name] else w[token_ids] for name, w in weights})
        return encoder

    @classmethod
    def pretrained(
        cls,
        name: str,
        pooling: Pooling | None = None,
        layers: int | None = None,
        pairs: PairEncoding | None = None,
    ) -> TransformerEncoder:
        """Load an encoder by hub name or directory.

        Args:
            name: a hub name, a directory, or `minilm` (the encoder installed with mtkd).
            pooling: see TransformerConfig; None = what the directory declares, or else `cls`.
            layers: keep only this many of the first layers.
            pairs: see TransformerConfig; None = as saved, or else a cross-encoder.

        Raises:
            UserError: there is no such model, the hub cannot be reached, the model has too few layers, or it
                declares a pooling that is not supported.
        """
        from transformers import AutoModel

        config = pretrained_config(name, pooling)
        if pairs is not None:
            config = config.model_copy(update={"pairs": pairs})
        if layers is not None:
            available = config.spec.layers
            if not 1 <= layers <= available:
                raise UserError(
                    f"cannot keep {layers} layers: {name!r} has {available}", expected=f"1 to {available}"
                )
            config = with_sizes(config, num_hidden_layers=layers)
        if config.head_size or config.embedding_rank:  # pruned, so transformers cannot load it
            encoder = cls(config)
            missing = load_pruned(encoder.body, Path(locate(name)), name, all_layers=layers is None)
        else:
            options = {"config": config.build_hf(), **pooler_option(config)}
            fewer = layers is not None
            body, missing = load_pretrained(AutoModel, locate(name), "encoder", fewer_layers=fewer, **options)
            encoder = cls(config, body)
        if lost := sorted(key for key in missing if not key.startswith("pooler.")):
            raise UserError(f"the checkpoint of the encoder {name!r} has no weights for {shorten(lost)}")
        return encoder

    @property
    def positions(self) -> int:
        """The maximum sequence length."""
        n_positions: int = getattr(self.body.config, "max_position_embeddings", 1 << 30)
        return n_positions - self._first_position

    @property
    def embeddings(self) -> nn.Embedding | FactorisedEmbedding:
        """The word embedding table; its `weight` is (V, d)."""
        return self.body.get_input_embeddings()  # type: ignore[operator, return-value]

    def forward(self, inputs: ModelInputs, need: OutputSpec = OutputSpec(pooled=True)) -> EncoderOutput:  # noqa: B008
        """Encode a batch; layers above the highest one that is needed are not run.

        Args:
            inputs: the batch; its `joined` tokens are (B, L).
            need: the outputs to return; nothing else is kept.

        Raises:
            UserError: a requested output could not be captured.
        """
        return self.run(self.body, inputs, need)[1]

    def run(self, module: nn.Module, inputs: ModelInputs, need: OutputSpec) -> tuple[Any, EncoderOutput]:
        """Like `forward`, but run another module that contains the body, such as a transformers classifier.

        Returns:
            The result of `module` (None if the pass was stopped early), and the requested outputs.
        """
        tokens = inputs.joined
        assert tokens is not None, "a Transformer reads both texts in one sequence"
        top = self.n_layers
        pooled = need.pooled
        averages_layers = pooled and self.config.pooling == "cls-of-layers"
        requested = replace(need, cls=need.cls | set(range(1, top + 1))) if averages_layers else need
        wrapped = module is not self.body
        run_all_layers = pooled or need.sequence or wrapped or not self.stops_early
        positions = None
        if self._selects_tokens and (not wrapped or reads_first_token(module)):
            positions = needed_positions(inputs, requested, top, mean_pooled=self.config.pooling == "mean")
        capture = Capture(requested, tokens.mask, run_all_layers, positions)
        options: dict[str, Any] = {"token_type_ids": tokens.token_type_ids} if self.reads_token_types else {}
        if not self._watched:
            options["output_hidden_states"] = bool(requested.hidden | requested.cls | requested.mean)
        outputs: list[Any] = []
        hook = self.body.register_forward_hook(lambda *call: outputs.append(call[-1])) if wrapped else None
        text_numbers = tokens.text_numbers
        if text_numbers is None:
            options["attention_mask"] = tokens.mask.long()
        else:
            eager = self.body.config._attn_implementation == "eager"  # type: ignore[union-attr]
            options |= side_by_side(text_numbers, self._first_position, adds_mask=eager)
        result = capture.run(module, input_ids=tokens.ids, **options)
        out = result
        if hook is not None:
            hook.remove()
            out = outputs[-1]
        if out is not None and positions is not None:
            capture.keep("cls", top, out.last_hidden_state[:, 0])
            capture.keep("hidden", top, out.last_hidden_state[:, 1:])
        elif out is not None:
            for layer, hidden in enumerate(getattr(out, "hidden_states", None) or ()):
                capture.record_hidden(layer, hidden)
            capture.record_hidden(top, out.last_hidden_state)
        self._refuse_missing(requested, capture)
        vector = self._pool(out, capture.captured["cls"], tokens) if pooled else None
        layer_outputs = {
            kind: {layer: tensors[layer] for layer in sorted(getattr(need, kind))}
            for kind, tensors in capture.captured.items()
        }
        sequence = out.last_hidden_state if need.sequence else None
        if positions is not None and top in need.hidden:
            layer_outputs["positions"] = {top: positions[:, 1:]}
        return result, EncoderOutput(
            pooled=vector, sequence=sequence, mask=tokens.mask, text_numbers=text_numbers, **layer_outputs
        )

    def save_weights(self, path: Path) -> None:
        """Write the weights and config.json to the directory of `path`, as transformers does.

        These files do not contain the task heads. config.json declares no labels, so that a pipeline of
        transformers fails instead of predicting with a new, random head.
        """
        with quiet_transformers():
            self.body.save_pretrained(path.parent)  # type: ignore[operator]
        config = path.parent / "config.json"
        write_json(config, read_record(config, dict[str, Any]) | {"id2label": {}, "label2id": {}})

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights that `save_weights` wrote."""
        self.body.load_state_dict(weights)

    def _refuse_missing(self, requested: OutputSpec, capture: Capture) -> None:
        captured: dict[str, Any] = {kind: frozenset(tensors) for kind, tensors in capture.captured.items()}
        missing = requested.missing_from(OutputSpec(logits=True, pooled=True, sequence=True, **captured))
        if missing:
            raise UserError(
                f"the encoder {self.spec.family!r} does not provide {', '.join(missing)}",
                expected="an encoder whose attention uses the transformers attention interface",
                hint="choose another encoder, or a recipe that only uses hidden states or logits",
            )

    def _pool(self, out: Any, cls: Mapping[int, Tensor], tokens: Tokens) -> Tensor:
        if tokens.second is not None:
            masks = (tokens.mask & ~tokens.second, tokens.second)
            u, v = (pool_text(out.last_hidden_state, mask, self.config.pooling) for mask in masks)
            return compare_vectors(u, v)
        if self.config.pooling == "cls-of-layers":
            return torch.stack([cls[layer] for layer in range(1, self.n_layers + 1)]).mean(0)
        if self.config.pooling == "pooler":
            vector: Tensor = out.pooler_output
            return vector
        return pool_text(out.last_hidden_state, tokens.mask, self.config.pooling)

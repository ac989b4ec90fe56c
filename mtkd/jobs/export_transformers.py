"""Convert a Transformer with the head of one task to a classifier or span model of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.onnx_export.parity import expected_logits, random_rows, tolerance_for
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.tokens.encoding import PADDED, pad_rows

_PROBLEM_TYPES = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}
_HINT = (
    "export it as ONNX (`format='onnx'`), which works for every model; or train a Transformer student, such "
    "as that of layerwise-3, with `student.transformer.pooling=pooler`, "
    "`student.transformer.pairs=cross-encoder` and `student.head_hidden_size=0`, or a teacher with "
    "`settings={'pooling': 'pooler', 'pairs': 'cross-encoder'}`"
)


def as_transformers(model: MultiTaskModel, task: Task) -> tuple[Any, float]:
    """Build the `...ForSequenceClassification` or `...ForQuestionAnswering` that gives the model's logits.

    Args:
        model: on the CPU, in evaluation mode.

    Returns:
        The model, and the largest absolute difference between its logits and those of `model`.

    Raises:
        UserError: no transformers class computes what this model computes.
    """
    encoder, head = model.encoder, model.heads[task.head]
    if not isinstance(encoder, TransformerEncoder):
        raise _refused(f"a {encoder.spec.family} model", "a Transformer")
    config = encoder.config
    pruned = bool(config.head_size or config.embedding_rank)
    spans = task.type.predicts_spans
    if pruned or model.info.head_hidden_size or not isinstance(getattr(head, "output", None), nn.Linear):
        reason = "is pruned" if pruned else "has a head with a hidden layer"
        raise _refused(f"a model that {reason}", "a linear head on an encoder with a shape of transformers")
    if config.compares_texts(task):
        raise _refused("a bi-encoder", "a model that reads both texts in one sequence")
    if not spans and config.pooling != "pooler":
        raise _refused(
            f"a model with {config.pooling} pooling",
            "BERT's pooling layer, which transformers' classifiers have before the last layer",
        )
    transformers_model = _random_model(encoder.body, task)
    transformers_model.base_model.load_state_dict(encoder.body.state_dict(), strict=False)
    classifier = transformers_model.qa_outputs if spans else transformers_model.classifier
    if hasattr(classifier, "out_proj"):  # RoBERTa keeps its pooling layer in the classifier
        classifier.dense.load_state_dict(encoder.body.pooler.dense.state_dict())  # type: ignore[union-attr]
        classifier = classifier.out_proj
    classifier.load_state_dict(head.output.state_dict())  # type: ignore[union-attr]
    transformers_model.eval()
    return transformers_model, _difference(transformers_model, model, task)


def _refused(model: str, expected: str) -> UserError:
    return UserError(f"{model} cannot be written as a transformers classifier", expected=expected, hint=_HINT)


def _random_model(body: Any, task: Task) -> Any:
    """The transformers model for an encoder body and a task, with random weights."""
    import transformers

    config = type(body.config).from_dict(body.config.to_dict())
    config._attn_implementation = "sdpa"
    if task.type.predicts_spans:
        return transformers.AutoModelForQuestionAnswering.from_config(config)
    config.num_labels = task.type.n_outputs(task)
    if len(task.labels) == config.num_labels:  # a task with candidates has two labels, but one output
        config.id2label = dict(enumerate(task.labels))
        config.label2id = {label: number for number, label in config.id2label.items()}
    config.problem_type = _PROBLEM_TYPES.get(task.kind)
    return transformers.AutoModelForSequenceClassification.from_config(config)


def _difference(transformers_model: Any, model: MultiTaskModel, task: Task) -> float:
    """The largest absolute difference between the logits of two models on a few random rows.

    Raises:
        UserError: it exceeds the tolerance, since the family of the encoder has other layers before its
            classifier.
    """
    largest = 0.0
    for rows in random_rows(task, model):
        (tokens,) = pad_rows(model.reader_of(task), rows.texts, np.arange(len(rows)))
        inputs = {"input_ids": tokens.ids, "attention_mask": tokens.mask}
        if model.encoder.reads_token_types:  # type: ignore[union-attr]
            inputs["token_type_ids"] = tokens.token_type_ids
        with torch.inference_mode():
            outputs = transformers_model(
                **{name: torch.from_numpy(np.asarray(value)).long() for name, value in inputs.items()}
            )
        expected = expected_logits(model, task, rows)
        if task.type.predicts_spans:
            logits = torch.stack([outputs.start_logits, outputs.end_logits], 1)
            logits = logits.masked_fill(~torch.from_numpy(tokens.mask).unsqueeze(1), PADDED)
        else:
            logits = outputs.logits
        difference = float((logits - torch.from_numpy(expected)).abs().max())
        if not difference <= tolerance_for(expected):
            raise _refused(f"a {model.encoder.spec.family} model", "BERT or RoBERTa")
        largest = max(largest, difference)
    return largest

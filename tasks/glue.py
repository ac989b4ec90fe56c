"""The built-in tasks, with the hub's columns: GLUE with its diagnostic set, SQuAD, XNLI and MLQA.

The last two are trained in English and scored in many languages.
"""

from __future__ import annotations

from tasks.task import Task

_GLUE = "nyu-mll/glue"
_XNLI = ("en", "fr", "es", "de", "el", "bg", "ru", "tr", "ar", "vi", "th", "zh", "hi", "sw", "ur")
_MLQA = ("en", "es", "de", "ar", "hi", "vi", "zh")


def _per_language(split: str, languages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{split}_{language}" for language in languages)


TASKS: dict[str, Task] = {
    "cola": Task(
        name="cola",
        kind="classify",
        columns=("sentence",),
        labels=("unacceptable", "acceptable"),
        metrics=("matthews",),
        groups=("glue",),
        hub=(_GLUE, "cola"),
        submission={"test": "CoLA.tsv"},
    ),
    "sst2": Task(
        name="sst2",
        kind="classify",
        columns=("sentence",),
        labels=("negative", "positive"),
        groups=("glue", "mkd", "sentiment"),
        hub=(_GLUE, "sst2"),
        submission={"test": "SST-2.tsv"},
    ),
    "mrpc": Task(
        name="mrpc",
        kind="classify",
        columns=("sentence1", "sentence2"),
        labels=("not_equivalent", "equivalent"),
        metrics=("f1", "accuracy"),
        groups=("glue", "mkd", "paraphrase"),
        hub=(_GLUE, "mrpc"),
        submission={"test": "MRPC.tsv"},
        copies=40,
    ),
    "stsb": Task(
        name="stsb",
        kind="regress",
        columns=("sentence1", "sentence2"),
        range=(0.0, 5.0),
        metrics=("pearson", "spearman"),
        groups=("glue", "mkd", "similarity"),
        hub=(_GLUE, "stsb"),
        submission={"test": "STS-B.tsv"},
        copies=40,
    ),
    "qqp": Task(
        name="qqp",
        kind="classify",
        columns=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        metrics=("f1", "accuracy"),
        groups=("glue", "mkd", "paraphrase"),
        hub=(_GLUE, "qqp"),
        submission={"test": "QQP.tsv"},
    ),
    "mnli": Task(
        name="mnli",
        kind="classify",
        columns=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        validation=("validation_matched", "validation_mismatched"),
        test=("test_matched", "test_mismatched"),
        groups=("glue", "mkd", "nli"),
        hub=(_GLUE, "mnli"),
        submission={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
    ),
    "qnli": Task(
        name="qnli",
        kind="classify",
        columns=("question", "sentence"),
        labels=("entailment", "not_entailment"),
        groups=("glue", "mkd", "nli"),
        hub=(_GLUE, "qnli"),
        submission={"test": "QNLI.tsv"},
    ),
    # MT-DNN's form of QNLI: a question's sentences are ranked. Only version 1 has several for each question.
    "qnli_rank": Task(
        name="qnli_rank",
        kind="rank",
        columns=("question", "sentence"),
        labels=("entailment", "not_entailment"),
        group="question",
        metrics=("group_accuracy",),
        hub=(_GLUE, "qnli"),
    ),
    "rte": Task(
        name="rte",
        kind="classify",
        columns=("sentence1", "sentence2"),
        labels=("entailment", "not_entailment"),
        groups=("glue", "mkd", "nli"),
        hub=(_GLUE, "rte"),
        submission={"test": "RTE.tsv"},
        copies=40,
    ),
    "wnli": Task(
        name="wnli",
        kind="classify",
        columns=("sentence1", "sentence2"),
        labels=("not_entailment", "entailment"),
        groups=("glue",),
        hub=(_GLUE, "wnli"),
        submission={"test": "WNLI.tsv"},
    ),
    "ax": Task(
        name="ax",
        kind="classify",
        columns=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        metrics=("matthews",),
        train=None,
        validation=(),
        head="mnli",
        hub=(_GLUE, "ax"),
        submission={"test": "AX.tsv"},
    ),
    "squad": Task(
        name="squad",
        kind="span",
        columns=("question", "context"),
        label="answers",
        metrics=("exact_match", "f1"),
        test=(),
        hub=("rajpurkar/squad", "plain_text"),
    ),
    "squad_v2": Task(
        name="squad_v2",
        kind="span",
        columns=("question", "context"),
        label="answers",
        metrics=("exact_match", "f1"),
        test=(),
        hub=("rajpurkar/squad_v2", "squad_v2"),
        unanswerable=True,
    ),
    "xnli": Task(
        name="xnli",
        kind="classify",
        columns=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        validation=_per_language("validation", _XNLI),
        test=_per_language("test", _XNLI),
        hub=("facebook/xnli", "{language}"),
        languages=_XNLI,
    ),
    "mlqa": Task(
        name="mlqa",
        kind="span",
        columns=("question", "context"),
        label="answers",
        validation=_per_language("validation", _MLQA),
        test=_per_language("test", _MLQA),
        hub=("google/xtreme", "MLQA.{language}.{language}"),
        languages=_MLQA,
        trained_on="squad",
    ),
}

"""Settings of a small student that several test files train."""

SMALL_LSTM = {
    "student.bilstm.embedding_size": 8,
    "student.bilstm.projection_size": 8,
    "student.bilstm.hidden_size": 8,
    "student.bilstm.output_size": 8,
    "student.head_hidden_size": 8,
    "student.max_length": 24,
    "train.batch_size": 16,
}
SMALL_TRANSFORMER = {
    "student.max_length": 24,
    "student.transformer.layers": 2,
    "student.transformer.hidden_size": 12,
    "student.transformer.heads": 2,
    "student.transformer.intermediate_size": 16,
    "train.batch_size": 8,
}

"""Settings of a small student, which several test files train."""

SMALL_LSTM = {
    "student.bilstm.embedding_size": 8,
    "student.bilstm.projection_size": 8,
    "student.bilstm.hidden_size": 8,
    "student.bilstm.output_size": 8,
    "student.head_hidden": 8,
    "student.max_length": 24,
    "train.batch_size": 16,
}

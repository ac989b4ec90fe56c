"""Export a model to ONNX: trace its graphs, write them, and compare them with the model."""

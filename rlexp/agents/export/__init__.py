"""Export of a checkpoint's policy to an ONNX file: its graph, the conversion, and the check of the model."""

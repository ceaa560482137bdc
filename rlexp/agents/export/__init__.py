"""A checkpoint's policy as an ONNX file: its graph, the conversion, and the check of one against the other."""

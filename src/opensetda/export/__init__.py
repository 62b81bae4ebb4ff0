"""A fitted model as one ONNX file, from an image or the rows of a table to labels."""

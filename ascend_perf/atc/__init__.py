"""Offline models: what ATC makes of an ONNX file, and what of its preprocessing AIPP can take over."""

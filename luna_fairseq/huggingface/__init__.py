"""A trained model as Hugging Face's transformers loads it, and as ONNX.

The files named in ``shipped_code.py`` go into an exported folder, with the plain modules that they import.
"""

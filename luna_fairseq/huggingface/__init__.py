"""Trained models as folders that Hugging Face's transformers loads, and as ONNX graphs.

``shipped_code.py`` writes the code of an exported model into its folder.
"""

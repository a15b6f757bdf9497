"""A trained model as Hugging Face's transformers loads it, and as ONNX.

``shipped_code.py`` puts the module of an exported model into its folder, and the plain ones that it imports.
"""

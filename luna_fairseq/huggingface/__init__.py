"""Export to Hugging Face's transformers and to ONNX, and import of exported folders.

``export.py``, ``export_onnx.py`` and ``import_checkpoint.py`` are the commands. An exported model runs the
code of ``configuration_luna.py``, ``modeling_*.py``, ``tokenization_*.py``, ``decoder.py`` and
``adapters.py``. ``shipped_code.py`` writes this code into the exported folder.
"""

"""Export of trained models to Hugging Face's transformers and to ONNX, and import of exported folders.

The commands are ``export.py``, ``export_onnx.py`` and ``import_checkpoint.py``. ``shipped_code.py`` copies
the code that an exported model runs into the exported folder. This code consists of
``configuration_luna.py``, ``modeling_*.py``, ``tokenization_*.py``, ``decoder.py``, ``adapters.py`` and the
modules that they import.
"""

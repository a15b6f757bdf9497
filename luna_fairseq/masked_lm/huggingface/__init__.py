"""The model as Hugging Face's transformers loads it: a thin class over this package's plain modules, which go
with it."""

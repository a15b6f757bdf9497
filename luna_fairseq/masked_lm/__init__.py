"""Masked language models (Luna, section 4.3): data preparation, fine-tuning and evaluation."""

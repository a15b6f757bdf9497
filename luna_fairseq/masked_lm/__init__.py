"""Masked language models (Luna, section 4.3): data, fine-tuning, export, commands."""

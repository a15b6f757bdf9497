"""Commands that prepare data for masked language models, and fine-tune and evaluate the models."""

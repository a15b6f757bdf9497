"""Commands that prepare data for masked language models, fine-tune the models, and evaluate them."""

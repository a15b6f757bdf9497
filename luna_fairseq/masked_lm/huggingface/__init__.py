"""The model as Hugging Face's transformers loads it: the two other files here go into an exported folder as they are."""

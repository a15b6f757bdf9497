"""Where Luna differs from the Transformer: ablations, and what a trained model's P has of the source."""

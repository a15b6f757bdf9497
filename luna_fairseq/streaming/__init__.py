"""Language modelling of unlimited text: the model carries its state from segment to segment."""

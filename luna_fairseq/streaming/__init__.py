"""Language modeling for texts of any length. The model carries its state from one segment to the next."""

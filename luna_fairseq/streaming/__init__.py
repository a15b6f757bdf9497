"""Language modeling of texts of any length. The model's recurrent state is carried between segments."""

"""What a kernel, a training step and a whole training should cost, on paper: operations, bytes, the bound."""

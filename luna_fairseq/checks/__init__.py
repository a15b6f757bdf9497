"""What a training, a checkpoint or a command may be asked before it works; nothing here changes fairseq."""

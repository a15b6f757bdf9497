"""Translation (Luna, section 4.2): data preparation, training commands, scores and analyses of attention."""

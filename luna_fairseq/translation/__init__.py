"""Translation (Luna, section 4.2): data, commands, scores, what P covers."""

"""Parts shared by all commands, and the commands that serve every kind of model."""

"""Code shared by all commands, and the commands that are not specific to one kind of model."""

"""What all commands share, and the commands that belong to no one experiment."""

"""Text that does not end: tasks whose models carry their state from segment to segment."""

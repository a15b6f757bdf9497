"""The Long Range Arena (Luna, section 4.1): task, criterion, data, commands."""

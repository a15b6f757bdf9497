"""Long Range Arena (section 4.1 of the Luna paper): tasks, criterion, data preparation and commands."""

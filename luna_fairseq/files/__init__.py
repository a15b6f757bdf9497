"""Files that are whole or absent: replacing, finished steps, downloads, archives."""

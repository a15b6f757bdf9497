"""Safe file handling: atomic writes, checksums, downloads, archives, and records of finished steps."""

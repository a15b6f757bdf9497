"""Text processing: parallel files, subword encodings, dictionaries and documents."""

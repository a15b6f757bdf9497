"""Processing of training and test text: parallel files, subword encodings, dictionaries and documents."""

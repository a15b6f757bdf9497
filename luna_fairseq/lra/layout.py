"""Names of the splits and folders in a data folder of Long Range Arena."""

from typing import Dict

SPLITS = ("train", "valid", "test")
# Folders of binarized sequences: the first and the second sequences of a pair, and the labels.
SOURCE, SECOND_SOURCE, LABEL = "src-bin", "src1-bin", "label-bin"

# Number of examples per split and class.
Counts = Dict[str, Dict[int, int]]

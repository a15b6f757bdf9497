"""Names of the splits and folders in a data folder of Long Range Arena."""

from typing import Dict

SPLITS = ("train", "valid", "test")
# Folders of binarised sequences: the first and the second sequences of a pair, and the labels.
SOURCE, SECOND_SOURCE, LABEL = "src-bin", "src1-bin", "label-bin"

# Number of examples by split and class.
Counts = Dict[str, Dict[int, int]]

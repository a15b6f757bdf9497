"""HTML pages that compare training runs (``luna-report``) and show attention maps (``luna-show``).

Each page is one HTML file that needs no other file. The folder assets/ holds its scripts and styles. Learning
curves are left to TensorBoard and Weights & Biases, to which fairseq writes.
"""

"""HTML pages that compare training runs (``luna-report``) and show attention maps (``luna-show``).

Each page is a single HTML file with its styles, scripts and data inside. Their sources are in assets/. Use
TensorBoard or Weights & Biases, which fairseq supports, for learning curves.
"""

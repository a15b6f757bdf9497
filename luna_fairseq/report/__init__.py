"""HTML pages that compare training runs (``luna-report``) and show attention maps (``luna-show``).

Each page is one HTML file that includes its styles, scripts and data. The sources of the styles and scripts
are in assets/. For learning curves, use TensorBoard or Weights & Biases, which fairseq supports.
"""

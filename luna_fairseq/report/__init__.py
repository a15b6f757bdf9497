"""HTML pages that compare training runs (``luna-report``) and show attention maps (``luna-show``).

Each page is one HTML file that contains all styles, scripts (from assets/) and data.
"""

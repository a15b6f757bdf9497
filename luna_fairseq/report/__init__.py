"""HTML pages that compare training runs (``luna-report``) and show attention maps (``luna-show``).

Each page is one HTML file that includes its styles, scripts (from assets/) and data.
"""

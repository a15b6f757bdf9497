"""What a person looks at: reports of training runs (``luna-report``) and maps of attention (``luna-show``).

Both are single HTML files that need nothing beside them. assets/ holds their scripts and styles, and uPlot
(https://github.com/leeoniya/uPlot, MIT, see uPlot.LICENSE), which draws the curves: 50 KB, where plotly takes
4.5 MB.
"""

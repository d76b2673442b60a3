"""The report as one HTML file that needs no network.

data.py         what the page shows, as plain columns
grid.py         ranks x steps            one_step.py, rank_slices.py    the slices of one step
launches.py     who launched a kernel    idle_spans.py                  what the host did where nothing ran
trust.py        how far to trust it      calibration_curves.py          what collectives should take
code_trees.py   lines and modules
pack.py         columns to text
page.py         what a page is made of   assembled.py   with template, styles and scripts to one file
kept.py         the same of a run that was not changed
template.html, report.css, js/           the page itself
"""

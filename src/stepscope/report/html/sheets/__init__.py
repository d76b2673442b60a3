"""Pages of everything else that is measured or predicted: one kind of page, told what to show.

sheet.py        the page: cards, sections with a chart and a table, notes; drawn by js/sheet.js and js/sheet_charts.js
bench.py        benchmarks, sweeps, scaling, collectives
calibration.py  what collectives take on a machine
predict.py      predictions
steps.py        a run without traces
runs.py         a folder of runs
"""

"""Pictures of a run, made once: the page draws them from their shapes, a notebook shows them as SVG.

drawing.py, axes.py    shapes, scales and ticks
run_steps.py ...       one picture per file
all_pictures.py        all pictures of a run, by name
"""

"""What things should cost: peak rates of chips with a source per row, FLOPs and bytes of operators and models,
time of collectives. Knows formulas and tables, no traces.
"""

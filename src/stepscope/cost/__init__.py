"""Expected costs: peak rates of chips, FLOPs and bytes of operators and models, collective times."""

"""What both sides rely on, standard library only: the files of a run folder, the regions of a step, collectives by
name, FLOPs of operators, and TensorBoard's records. The job writes by it, the desk reads by it, and no fact of it
stands twice.
"""

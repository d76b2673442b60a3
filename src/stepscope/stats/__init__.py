"""Statistics that everything may use.

    middle             the median
    distinct           each value once
    robust             medians and spreads that one outlier cannot move
    bootstrap          intervals and differences of step times
    autocorrelation    how many independent samples a series is worth
    student_t          Student's t

They see numbers, never a run.
"""

"""Statistics that everything may use: medians and spreads that one outlier cannot move (`robust`), intervals of
step times by the bootstrap (`bootstrap`), and Student's t (`student_t`)."""

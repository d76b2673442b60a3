"""Owner lines of operators: one step with Python frames after the window, and its event tree."""

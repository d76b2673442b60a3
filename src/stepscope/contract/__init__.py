"""File names, formats and vocabulary shared by the job side and the analysis side; standard library only."""

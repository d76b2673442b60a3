"""Ranks into one `Run`: find the files, know whose they are, read them in parallel, mark the steps, align the
clocks and match what the ranks did together. Everything above works on a `Run`, never on a file.
"""

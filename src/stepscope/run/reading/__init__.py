"""From the files that were found to one trace per rank, before they are a `Run`.

each_file        one file read, or why it could not be; progress, threads and memory of all files together
told_apart       copies, parts of one trace, and files that are no traces, told from the traces of ranks
pulled_window    who asked for a window while the job ran, and which steps it is held against
"""

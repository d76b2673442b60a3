"""Pickles that torch writes, read without running anything in them: the plain data of a pickle (`plain_data`), in a
process of its own where the file is large (`apart`), flight recorder dumps (`flight_recorder`) and CUDA memory
snapshots (`memory_snapshot`)."""

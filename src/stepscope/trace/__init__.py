"""Files into tables: the schema of all columns, one reader per format, classification of events, the cache.

`read(path)` gives a `Trace`: exact integer nanoseconds, interned names, sparse arguments and an account of what
the file's damage cost. Nothing here knows of more than one rank.
"""

"""One question per file, answered from a `Run`: how long each rank computed, communicated and idled, what was
hidden behind what, which rank was late and why. Pure functions in, frozen dataclasses out; nothing prints.
"""

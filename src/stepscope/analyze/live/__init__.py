"""A running job at one moment, from the newest steps of its logs: pace, late ranks, ranks that stand still, alarms.

picture    steps/s, MFU, regions, memory and lateness by rank
alarms     what has been wrong for a while, and what has been right again for a while
stalls     which rank did not arrive, and where each one is
"""

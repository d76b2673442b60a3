"""All ranks on one clock: offsets from the ends of collectives, hard bounds, the recorder's own probes, and clocks
that drift or were set."""

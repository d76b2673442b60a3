"""One measurement on real ranks: started and watched, timed step by step, gathered and written down."""

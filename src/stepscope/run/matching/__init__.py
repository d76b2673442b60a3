"""Which operations of different ranks are the same collective: sequences laid over each other."""

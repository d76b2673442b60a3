"""The recorded run with one thing changed: replay (what-if), other world sizes, advice on strategy."""

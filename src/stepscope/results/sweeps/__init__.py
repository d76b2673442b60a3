"""What a sweep says: what each variant won (`gain`), whether it still computes the same (`agreement`), how it is
judged, and what to use."""

"""Which pages there are to make pictures of, and how pictures are kept small."""

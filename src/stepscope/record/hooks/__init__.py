"""Steps and regions found in an unmodified script: one small file per hook."""

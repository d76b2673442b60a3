"""A run as tables: every column typed and described in `schema`, made from what was recorded and from the account,
and given out as CSV, Parquet, Arrow or through SQL."""

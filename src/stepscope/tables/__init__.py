"""A run as typed tables: schema, Arrow, CSV, Parquet, SQL."""

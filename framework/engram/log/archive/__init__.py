"""Old records of a log in Parquet: segments with seals, and the log that reads both as one."""

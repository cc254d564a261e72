"""The log, state, events, replies and read models of an app as DataFrames, by Spark's Python Data Source API."""

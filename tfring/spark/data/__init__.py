"""Data of estimators: from a data frame into Parquet, and from there to the ranks."""

"""Feature tables: CSV, Parquet, npz and npy, larger than memory too."""

"""Independent pieces of work on the workers of dask, and folders of the parts that they write."""

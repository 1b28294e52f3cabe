"""Many machines as one: kernels tuned on the workers of a Dask cluster (the extra ``fleet``)."""

"""Read and update the file of known leaks, and match findings with its entries."""

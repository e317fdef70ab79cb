"""Read and check options and marks, and make a plan for each test."""

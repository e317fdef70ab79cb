"""Read options and marks, check them, and make a plan of each test."""

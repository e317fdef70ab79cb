"""Follows the processes of a running training: what they hold, how fast it grows, and when that ends them."""

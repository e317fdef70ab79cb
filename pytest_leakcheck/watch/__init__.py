"""Watch what a program's processes hold, how fast it grows, and when it will reach a limit."""

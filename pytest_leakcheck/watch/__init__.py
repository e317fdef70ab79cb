"""Watch what the processes of a running program hold, how fast that grows, and when it will reach a limit."""

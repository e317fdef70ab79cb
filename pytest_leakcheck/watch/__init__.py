"""Follow the processes of a running program from outside: what they hold, how it grows, and when a limit ends it."""

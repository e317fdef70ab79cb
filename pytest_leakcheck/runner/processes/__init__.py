"""Start, supervise and end subprocesses. Importing this package loads neither pytest nor the plugin."""

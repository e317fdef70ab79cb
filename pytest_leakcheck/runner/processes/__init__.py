"""Start, supervise and end subprocesses. Importing it loads neither pytest nor the plugin."""

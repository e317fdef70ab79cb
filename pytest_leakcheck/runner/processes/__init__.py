"""Start, supervise and end subprocesses. An import loads neither pytest nor the plugin."""

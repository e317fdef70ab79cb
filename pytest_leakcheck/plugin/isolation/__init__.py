"""Run an item in a subprocess, and collect its reports."""

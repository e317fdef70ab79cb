"""Values that every room passes on, with a JSON form: resources, recordings, verdicts, findings, culprits. Imports no other room."""

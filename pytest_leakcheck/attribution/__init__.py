"""What is held: identities of the survivors, found after a verdict."""

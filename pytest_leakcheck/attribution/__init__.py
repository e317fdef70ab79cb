"""Find the cause of a leak: what is held (here), where it is made (`tracing`), who holds it (`heap`)."""

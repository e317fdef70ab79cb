"""Turn readings and budgets into verdicts and findings. Reads no counter and no clock."""

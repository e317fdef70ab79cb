"""Turn readings and budgets into verdicts and findings. This package reads no counter and no clock."""

"""Turn readings and budgets into verdicts and findings, without reading any counter or clock."""

"""Render findings: text for the terminal, JSON, and HTML (`html`). Measures and judges nothing."""

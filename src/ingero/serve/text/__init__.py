"""Human-readable text: findings, breakdowns and comparisons."""

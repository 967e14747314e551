"""What people read: findings, breakdowns and comparisons as text."""

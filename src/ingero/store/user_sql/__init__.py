"""What a user's statement may name and take."""

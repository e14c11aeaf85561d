"""What the steps do."""

"""What is wrong or suspicious in the data."""

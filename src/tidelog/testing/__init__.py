"""What users and our own tests need to run Tidelog inside a test. Nothing in the product imports this package."""

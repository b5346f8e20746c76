"""What every test may use. Nothing here is slow to import."""

# Seconds until a test that hangs is stopped. No test needs them when it works, and no test claims a
# duration.
PATIENCE = 900.0

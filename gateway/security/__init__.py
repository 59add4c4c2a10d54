"""Who may do what: API keys and their limits, and guards against what browsers can be made do."""

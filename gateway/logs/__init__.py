"""What the gateway and its engines say: lines of a form, in memory for whoever looks, in files."""

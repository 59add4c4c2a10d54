"""Models as files: what one is made of, and the process that fetches and converts them."""

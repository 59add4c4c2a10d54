"""Models as files: what a folder or a repository holds, and the process that fetches and converts."""

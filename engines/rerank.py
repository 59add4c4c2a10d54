"""How relevant documents are to a query."""

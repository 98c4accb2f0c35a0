"""Text to documents, sentences, ids, pairs, records and their manifest."""

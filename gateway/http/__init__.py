"""The OpenAI-compatible HTTP door. Fields, extensions and errors: docs/http.md."""

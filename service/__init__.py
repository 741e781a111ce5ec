"""The prediction service over HTTP."""

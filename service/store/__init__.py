"""Measured peaks that clients reported, and their graphs: SQLite or PostgreSQL, behind SQLAlchemy."""

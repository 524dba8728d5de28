"""What was measured, for people to see: one HTML page (start at `report.py`), and tables in the terminal."""

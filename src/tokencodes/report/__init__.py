"""report.html out of a study's folder: `results` reads it, `figures` draws, `page` writes. Knows
only what is on disk.
"""

"""Run the command line as `python -m peakcast`."""

from peakcast.cli import app

app(prog_name="peakcast")

"""Rules that turn tables into verdicts with evidence."""

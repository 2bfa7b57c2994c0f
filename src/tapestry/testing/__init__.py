"""Suites inside other test frameworks: `plugin` makes every case a pytest test."""

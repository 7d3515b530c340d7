"""Everything is stated in pyproject.toml; this file is where native extensions are added."""

from setuptools import setup

setup()

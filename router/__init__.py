"""The Headway service: a pure scheduler core and the gateway that runs it."""

__version__ = "0.1.0"

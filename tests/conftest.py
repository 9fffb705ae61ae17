"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes to draw or to run says something of the machine, not of the code.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headway")

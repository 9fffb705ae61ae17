"""Latency from the history of an instance: an LSTM over its events, a head for each request (NumPy only)."""

from predictors.learned.latency.features import EVENT_FEATURES as EVENT_FEATURES
from predictors.learned.latency.features import LATENCY_FEATURES as LATENCY_FEATURES
from predictors.learned.latency.features import TARGET_FEATURES as TARGET_FEATURES
from predictors.learned.latency.features import TAUS as TAUS
from predictors.learned.latency.features import Estimate as Estimate
from predictors.learned.latency.features import Track as Track
from predictors.learned.latency.model import LatencyModel as LatencyModel

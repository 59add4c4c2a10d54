"""Every metric there is, and the page that Prometheus reads.

Counters and histograms are written to as things happen (`Metrics`), gauges are read at a scrape
(`Gauges`). Label values come from configuration and from our own code, never from client input, so
the number of series is bounded; those of a model go with the model.
"""

from gateway.metrics.gauges import PREFIX, Gauges, ModelGauges
from gateway.metrics.series import NO_MODEL, Metrics

__all__ = ["NO_MODEL", "PREFIX", "Gauges", "Metrics", "ModelGauges"]

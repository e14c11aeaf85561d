"""Making Prometheus metrics that all carry the labels which say whose they are."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric


class CounterBy:
    """Counters by the value of a label, beside those that are `fixed`."""

    def __init__(self, family: Counter, fixed: Mapping[str, str]) -> None:
        self._family = family
        self._fixed = fixed

    def __call__(self, **label: object) -> Counter:
        return self._family.labels(**self._fixed, **label)

    def forget(self, value: str) -> None:
        self._family.remove(*self._fixed.values(), value)


class MetricFamilies:
    """A registry of its own. Every metric has `model_name`; those with vLLM's names its `engine` too.

    vLLM numbers its engines, and its dashboards select by that label. There is one here, 0.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model_name = model_name

    def counter(self, name: str, documentation: str) -> Counter:
        """Exported as 0 from the start, so that rates have a first point."""
        fixed = self._labels(name)
        return Counter(name, documentation, list(fixed), registry=self.registry).labels(**fixed)

    def counter_by(self, label: str, name: str, documentation: str) -> CounterBy:
        """Called with `label` as a keyword, gives the counter of that value."""
        fixed = self._labels(name)
        return CounterBy(Counter(name, documentation, [*fixed, label], registry=self.registry), fixed)

    def histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        fixed = self._labels(name)
        family = Histogram(name, documentation, list(fixed), buckets=buckets, registry=self.registry)
        return family.labels(**fixed)

    def gauge_now(self, name: str, documentation: str, value: float) -> Metric:
        """A gauge for a collector that reads its value when scraped."""
        return self._now(GaugeMetricFamily, name, documentation, {(): value})

    def gauge_by_now(self, label: str, name: str, documentation: str, values: Mapping[str, float]) -> Metric:
        """Likewise, with a value for each value of `label`."""
        return self._now(GaugeMetricFamily, name, documentation, {(key,): v for key, v in values.items()}, label)

    def info_now(self, name: str, documentation: str, facts: Sequence[Mapping[str, str]]) -> Metric:
        """A gauge that is 1 for each of `facts`, which have the same labels."""
        values = {tuple(fact.values()): 1.0 for fact in facts}
        return self._now(GaugeMetricFamily, name, documentation, values, *(facts[0] if facts else ()))

    def count_now(self, name: str, documentation: str, value: float) -> Metric:
        """A counter for a collector that reads its value when scraped."""
        return self._now(CounterMetricFamily, name, documentation, {(): value})

    def count_by_now(self, label: str, name: str, documentation: str, values: Mapping[str, float]) -> Metric:
        """Likewise, with a value for each value of `label`."""
        return self._now(CounterMetricFamily, name, documentation, {(key,): v for key, v in values.items()}, label)

    def _now(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        documentation: str,
        values: Mapping[tuple[str, ...], float],
        *labels: str,
    ) -> Metric:
        fixed = self._labels(name)
        family = kind(name, documentation, labels=[*fixed, *labels])
        for key, value in values.items():
            family.add_metric([*fixed.values(), *key], value)
        return family

    def _labels(self, name: str) -> dict[str, str]:
        engine = {"engine": "0"} if name.startswith("vllm:") else {}
        return {"model_name": self._model_name, **engine}

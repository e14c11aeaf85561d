"""Dashboard and rules in `deploy/` name only what the server exports, and Prometheus and Grafana take them."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hotdraft.serving.graphs.graphed_runner import GraphCounts
from hotdraft.serving.messages.events import RoundStats, SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, RequestStats, SamplingParams
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.state_metrics import Sources
from hotdraft.serving.models.runner import Computation
from tests.unit.promql import names_of

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "hotdraft.json"
RULES = DEPLOY / "prometheus-rules.yml"

SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds to every series."""
VLLM_DASHBOARD = {
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_max_num_generation_tokens_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_success_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:time_to_first_token_seconds_bucket",
}
"""What vLLM's example dashboards `grafana.json` and `vllm_speculative_decoding.json` ask for."""


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Labels of every sample that a server exports once it has served, by the sample's name."""
    engine = SimpleNamespace(
        draft_version=1,
        num_running=0,
        num_waiting=0,
        num_slots=2,
        max_model_len=64,
        failures={"round": 0},
        computations={"target": Computation("native", "avx2", "float32")},
        stalls=0,
        graphs=GraphCounts(),
    )
    adapters = SimpleNamespace(refused=0, unusable={2: "out of memory"}, problem=None, swap_failures=0, errors=0)
    recorder = SimpleNamespace(recorded=0, dropped=0, left_out={"store": 1}, problem=None)
    metrics = ServingMetrics(engine, "tiny", Sources(recorder=recorder, adapters=adapters))
    metrics.on_round(RoundStats(2, 1, 2, 1, (1, 0), 1, 1, 2, 0.1, 1, 0.15, (0.1,)))
    request = GenerationRequest("r", (1,), SamplingParams())
    metrics.on_finish(request, RequestStats(2, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 0.0, 0.1, 0.2), "stop")
    metrics.on_swap(SwapEvent(1, 0, "promotion", 0.01))
    found: dict[str, set[str]] = {"up": set()}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(where, expression) of every panel, annotation and rule."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        if "expr" in annotation:
            yield f"annotation {annotation['name']!r}", annotation["expr"]
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']!r}", rule["expr"]


def test_every_metric_and_label_is_exported(dashboard: dict[str, Any], exported: dict[str, set[str]]) -> None:
    for where, expression in expressions(dashboard):
        names = names_of(expression)
        assert names.metrics, where
        for metric, labels in names.metrics.items():
            assert metric in exported, f"{where}: {metric} is not exported"
            unknown = labels - exported[metric] - SCRAPED
            assert not unknown, f"{where}: {metric} has no label {unknown}"
            unknown = names.grouped - exported[metric] - SCRAPED
            if len(names.metrics) == 1:
                assert not unknown, f"{where}: {metric} has no label {unknown}"


def test_the_variables_ask_for_what_is_exported(dashboard: dict[str, Any], exported: dict[str, set[str]]) -> None:
    queries = [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert queries
    for query in queries:
        asked = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", query)
        assert asked, query
        assert asked[2] in exported[asked[1]] | SCRAPED, query


def test_vllms_dashboards_find_what_they_ask_for(exported: dict[str, set[str]]) -> None:
    assert set(exported) >= VLLM_DASHBOARD
    for name in VLLM_DASHBOARD:
        assert exported[name] >= {"model_name", "engine"}


def test_every_metric_of_ours_is_on_the_dashboard_or_alerted_on(
    dashboard: dict[str, Any], exported: dict[str, set[str]]
) -> None:
    used = {metric for _, expression in expressions(dashboard) for metric in names_of(expression).metrics}
    ours = {name for name in exported if name.startswith("hotdraft_") and not name.endswith("_created")}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    assert {name for name in ours if re.sub(r"_(bucket|sum|count)$", "", name) not in families} == set()


def test_grafana_has_what_it_needs(dashboard: dict[str, Any]) -> None:
    assert isinstance(dashboard["schemaVersion"], int)
    assert re.fullmatch(r"[\w-]{1,40}", dashboard["uid"])
    assert dashboard["title"]
    panels = dashboard["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert 0 < place["w"] <= 24 - place["x"]
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"]
            references = [target["refId"] for target in panel["targets"]]
            assert references
            assert len(set(references)) == len(references)
            for holder in (panel, *panel["targets"]):
                assert holder["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for one, other in combinations(panels, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), f"{one['title']!r} lies over {other['title']!r}"


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    def apart(start: str, length: str) -> bool:
        return one[start] + one[length] <= other[start] or other[start] + other[length] <= one[start]

    return not (apart("x", "w") or apart("y", "h"))


def test_variables_are_defined_before_they_are_used(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    builtin = {"__rate_interval", "__range", "__all"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    assert used - builtin == set(variables), "each is used, and each that is used is defined"


def test_swaps_are_annotated(dashboard: dict[str, Any]) -> None:
    [swaps] = [each for each in dashboard["annotations"]["list"] if each["name"] == "Swaps"]
    assert swaps["enable"]
    assert "hotdraft_swaps_total" in names_of(swaps["expr"]).metrics


def test_provisioning_fits_together() -> None:
    [source] = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["type"] == "prometheus"
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
    assert scrape["rule_files"] == [RULES.name]
    [provider] = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/hotdraft.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    [job] = scrape["scrape_configs"]
    assert f'job="{job["job_name"]}"' in RULES.read_text()


def promtool(*arguments: object) -> str:
    """What promtool says; it must be content."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on this system")
    command = ["promtool", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_prometheus_takes_rules_and_configuration() -> None:
    promtool("check", "rules", RULES)
    promtool("check", "config", DEPLOY / "prometheus.yml")


def test_prometheus_understands_every_expression(dashboard: dict[str, Any], tmp_path: Path) -> None:
    plain = [re.sub(r"\$__\w+", "5m", expression) for _, expression in expressions(dashboard)]
    rules = [{"record": f"r{i}", "expr": expression} for i, expression in enumerate(plain)]
    path = tmp_path / "expressions.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    labels, busy = (f'{{model_name="m",instance="{name}",job="hotdraft"}}' for name in ("i", "busy"))
    first = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0",'
    steady, fallen = "0+120x400", "0+60x360 21600+12x40"  # a minute: 120 drafts, of 60 and then 12 the first token
    tests = {
        "interval": "1m",
        "input_series": [
            {"series": f"vllm:spec_decode_num_drafts_total{labels}", "values": steady},
            {"series": first + labels[1:], "values": fallen},
            # with more to do another drafts less far: of all its tokens fewer come, of its first ones as many
            {"series": f"vllm:spec_decode_num_drafts_total{busy}", "values": steady},
            {"series": f"vllm:spec_decode_num_draft_tokens_total{busy}", "values": "0+360x360 129600+120x40"},
            {"series": f"vllm:spec_decode_num_accepted_tokens_total{busy}", "values": "0+270x360 97200+60x40"},
            {"series": first + busy[1:], "values": "0+60x400"},
            {"series": f"hotdraft_rollbacks_total{labels}", "values": "0x380 1x20"},
            {"series": f"vllm:num_requests_waiting{labels}", "values": "0x380 3x20"},
            {"series": f"hotdraft_recorder_dropped_total{labels}", "values": "0x400"},
            # one that is started again once and then gone, and a server that has none
            {"series": f"hotdraft_trainer_running{labels}", "values": "1x9 0x5 1x284 0x99"},
            {"series": f"hotdraft_trainer_running{busy}", "values": "0x400"},
            {"series": f"hotdraft_job_silent_seconds{labels}", "values": "0x360 60+60x30"},
        ],
        "promql_expr_test": [],
        "alert_rule_test": [
            alert("HotdraftAcceptanceFell", "355m", fires=False),
            alert("HotdraftAcceptanceFell", "379m", fires=True),
            alert("HotdraftRolledBack", "380m", fires=False),
            alert("HotdraftRolledBack", "385m", fires=True),
            alert("HotdraftRequestsWait", "389m", fires=False),
            alert("HotdraftRequestsWait", "399m", fires=True),
            alert("HotdraftRecorderDrops", "399m", fires=False),
            alert("HotdraftTrainerGone", "14m", fires=False),
            alert("HotdraftTrainerGone", "314m", fires=False),
            alert("HotdraftTrainerGone", "320m", fires=True),
            alert("HotdraftJobHangs", "375m", fires=False),
            alert("HotdraftJobHangs", "376m", fires=True),
        ],
    }
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]  # promtool compares them too, numbers and all
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [tests]}))
    promtool("test", "rules", path)


def alert(name: str, when: str, *, fires: bool) -> dict[str, Any]:
    labels = {"severity": "warning", "model_name": "m", "instance": "i"}
    if name != "HotdraftAcceptanceFell":
        labels["job"] = "hotdraft"
    return {"alertname": name, "eval_time": when, "exp_alerts": [{"exp_labels": labels}] if fires else []}

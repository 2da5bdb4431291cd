"""What telemetry costs a round, in microseconds of CPU: python benchmarks/telemetry.py

Plays the rounds of an answer through what the gateway and the verifier do for each of them, with
telemetry off, with metrics, and with metrics and a span of every round, encoded as OTLP and thrown
away. No model runs: set the sums against the time of a round. The last line is JSON.
"""

import json
import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from gateway.metrics import GatewayMetrics
from gateway.recent import RecentAnswers
from gateway.traces import Traces
from paceline import telemetry
from paceline.events import Request
from paceline.metrics import instruments as names
from paceline.metrics.reader import Metrics
from paceline.rounds import RoundReport, TokenSource
from verifier_service.spans import VerifySpans

ROUNDS = 200
ANSWERS = 50
# What a round of the embedded model takes at the least, on two cores (docs/log.md: 41 ms).
ROUND_MS = 40.0


class Shredder(SpanExporter):
    """Encodes what it is given, as an exporter does, and sends it nowhere."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def reports() -> list[RoundReport]:
    block = {"num_drafted": 8, "num_tested": 5, "num_accepted": 4, "num_output": 5}
    times = {"draft_us": 300, "wait_us": 900, "verify_us": 41_000, "start_unix_nanos": 1}
    return [
        RoundReport(n, **block, **times, source=TokenSource.PROMPT_LOOKUP, ledger_us=-n)
        for n in range(1, ROUNDS + 1)
    ]


def cost_us(*, with_metrics: bool, with_spans: bool) -> float:
    """CPU time of a round, of all threads of this process, the best of three."""
    provider = telemetry.set_up("bench")
    if with_spans:
        provider.add_span_processor(BatchSpanProcessor(Shredder(), max_queue_size=2**16))
    metrics = Metrics(names.GATEWAY) if with_metrics else None
    gateway = None
    if metrics:
        gateway = GatewayMetrics(
            metrics, workloads=(), served=lambda: ["m"], num_active=int, num_ready=int
        )
    traces = Traces(provider, every_round=True, recent=RecentAnswers(16), metrics=gateway)
    verify = VerifySpans(provider)
    step = [metrics.histogram(i) for i in (names.STEP_DURATION, names.STEP_ROWS)] if metrics else []
    rounds, best = reports(), float("inf")
    for _ in range(3):
        begun = time.process_time()
        for number in range(ANSWERS):
            answer = traces.begin(
                Request(""),
                answer_id=str(number),
                model="m",
                session_id="",
                parent=None,
                start_unix_nanos=time.time_ns(),
            )
            spans = verify.of(telemetry.parse_context(*answer.headers()))
            for report in rounds:
                answer.record_round(report)
                spans.record(report)
                for histogram in step:
                    histogram.record(1.0)
            answer.end("")
        provider.force_flush()
        best = min(best, time.process_time() - begun)
    telemetry.shut_down(provider)
    return best / (ANSWERS * ROUNDS) * 1e6


def main() -> None:
    costs = {
        "off": cost_us(with_metrics=False, with_spans=False),
        "metrics": cost_us(with_metrics=True, with_spans=False),
        "metrics and every span": cost_us(with_metrics=True, with_spans=True),
    }
    for name, us in costs.items():
        print(f"{name:<24} {us:7.1f} us a round, {us / ROUND_MS / 10:.2f} % of {ROUND_MS:.0f} ms")
    print(json.dumps({name.replace(" ", "_"): round(us, 1) for name, us in costs.items()}))


if __name__ == "__main__":
    main()
